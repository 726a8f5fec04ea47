"""Copies results and checkpoints back from a node's disk to the run directory while training runs.

node_side, worker    the agent's end; its niced process, with the order of copies, and a later job for the rest
completeness         which files are complete
publish              copies that are whole or absent, their names, which node owns which, and the rate of copies

Files of other people or nodes in the run directory are never replaced.
"""
