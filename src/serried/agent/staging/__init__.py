"""Data on the way to a node's own disk."""
