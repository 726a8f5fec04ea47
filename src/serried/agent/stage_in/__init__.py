"""Data on the node's own disk before ranks start: read once, passed from node to node, kept for later jobs.

head_side, node_side        the agents' ends: of the head, of a node, and of a shell
worker, item                the process that stages every item and reads the shared file system; the state of one item
tree_writer                 writes the tree, and logs its extents for the next node
relay                       the node before this one, and the node after it
archives, cache             folders made from archives; items that stay for later jobs
"""
