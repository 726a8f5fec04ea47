"""Copies results and checkpoints back from a node's disk to the run directory while training runs.

node_side, worker       the agent's end; its niced process, and a later job that copies the rest
sync_loop, throttle     the order and the rate of copies, and which checkpoints are kept
completeness            which files are complete
publish                 copies that are whole or absent, their names, and which node owns which
"""
