"""Copies results and checkpoints from a node's disk to the run directory while training runs.

node_side, worker       the agent's end, and its niced process; `recovery` copies the rest in a later job
sync_loop, throttle     the order and the rate of copies
completeness, file_copy which files are complete; copies that are whole or absent
publish, ledger         names in the run directory, and which node owns which
"""
