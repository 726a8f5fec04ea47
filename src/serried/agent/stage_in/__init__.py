"""Data on the node's own disk before ranks start: read once, passed from node to node, kept for later jobs.

head_side, node_side    the agents' ends: of the head, of a node, and of a shell
worker                  the process that stages every item and reads the shared file system
items                   what of an item has arrived; the tree that is written; the cache that jobs share
relay                   the node before this one, and the node after it
archives                folders made from archives

The plan's `data.stage` enters, and `{data}`, a folder of links, leaves. Sources are only read, and never beyond what
their manifest lists.
"""
