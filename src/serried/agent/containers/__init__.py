"""The container that ranks run in, as its node sees it.

container, view   what goes before their words, what they find set, and which of the host's folders they see where
imagecopy         the image on the node's own disk
"""
