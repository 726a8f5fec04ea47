"""How head and nodes find each other, and their messages.

rendezvous, env_file    ports and addresses; the job's environment for nodes that do not get it from the launcher
channel, node_registry  one connection with signed lines; all node agents, on the head
"""
