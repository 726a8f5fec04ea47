"""The head agent, on the first node: it starts the agents of all nodes and decides when they stop.

head             the head, the scheduler's launcher of the nodes' agents, and what the head checks periodically
live_file        writes live.json, what all nodes do now
snapshot         unpacks the source that ranks run
"""
