"""Which job may make which attempt of a run, and what an attempt has come to.

claims, turn        a job claims its submission and the next attempt; the first also looks how the runs before it ended
history             the attempts that there were
chain, continuing   further jobs, and what keeps a run from going on in them
requests            what users ask of an attempt from outside
conclusion          what an attempt has come to, judged by `ending` and written down
"""
