"""How head and nodes find each other, and their messages.

rendezvous              ports and addresses
job_environment         the environment of agents on the nodes
channel, node_registry  one connection with signed lines; all node agents, on the head
"""
