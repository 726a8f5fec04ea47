"""The stacks of this node's ranks, while they run: `serried stacks`.

`node_side` is the agent's part, and `worker` a process beside the agent: reading a process in /proc may hang as the
process does.
"""
