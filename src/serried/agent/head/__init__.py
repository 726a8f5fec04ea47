"""The head agent, on the first node: it starts the agents of all nodes and decides when they stop.

head, monitor    the head; the deadline, and what it checks periodically
agent_launcher   the scheduler's launcher, which starts the nodes' agents
live_file        writes live.json, what all nodes do now
snapshot         unpacks the source that ranks run
"""
