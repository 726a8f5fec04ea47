"""How the head and the agents of the nodes find one another, and what they say to each other.

rendezvous, handover   ports and addresses, and the way of the job's environment to nodes that have none
channel, members       one connection, every line signed; all nodes that have called, the head's end
"""
