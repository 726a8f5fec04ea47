"""Results and checkpoints come back: one niced process on each node copies them from its disk while training runs.

node, service       the agent's end, and the process; `fetching` is the one that comes for the rest later
rounds, pace        in what order it looks and copies, and how fast
looking, copying    what is there and complete; brought whole or not at all
placing, ledger     where it goes, and whose a name is
"""
