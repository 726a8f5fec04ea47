"""This machine as a cluster of one node, without a daemon."""
