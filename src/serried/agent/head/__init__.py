"""The head agent, on the first node: it starts the agents of all nodes and decides when they stop.

beginning            its role: claim the attempt, then be the `head`
launcher, snapshot   the scheduler's launcher, by which nodes start; the source that ranks run
watching, deadline   what it watches as time goes by; when the time limit warns and ends ranks
"""
