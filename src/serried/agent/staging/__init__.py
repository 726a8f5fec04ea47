"""Data on the node's own disk before ranks start: read once, passed from node to node, kept for the next job.

`source` reads the shared file system, `target` writes the tree that comes into being here, `arrived` is what of it is
here by now, from which `peers` serve the next node, `cache` what stays and when it is the same, `archives` unpacks.
"""
