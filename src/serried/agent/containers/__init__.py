"""The container that ranks run in (`container`), and the copy of its image on the node's own disk (`image_cache`)."""
