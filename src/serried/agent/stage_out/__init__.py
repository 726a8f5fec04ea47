"""Copies results and checkpoints back from a node's disk to the run directory while training runs.

node_side, worker       the agent's end; its niced process, with the order of copies, and a later job for the rest
throttle                the rate of copies
completeness            which files are complete
publish                 copies that are whole or absent, their names, and which node owns which
"""
