"""Data on the node's own disk before ranks start: read once, passed from node to node, kept for the next job.

head, node, alone        the ends of the agents: the head's, a node's, both in a shell; `order` says who gets it whence
in_place                 data that stays where it is: is it seen?
stage, items, task       the process that brings it: its role, every item in turn, and what is to be brought to what
source, pulse, ahead     the shared file system: read, still answering, and whether what comes from it has room here
peers, pulling, wire     the next node and the one before, and what goes between; `holding` is what there is to give
target, arrived, far     the tree that comes into being, what of it is here by now, and how that is told
archives, writers        folders made of archives; threads for many small files
cache, kept              what stays for other jobs and when it is the same; what this job holds of it
"""
