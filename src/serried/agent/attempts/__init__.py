"""Which job may start which attempt of a run, and how an attempt ended.

claims, dependency   a job claims its submission and the next attempt; the first also checks how earlier runs ended
history              the attempts so far, and users' requests to them
successor_jobs       further jobs of the run
deadline             when ranks receive the stop notice, and when they are ended
continuing           whether the run continues in another attempt
finalize             how an attempt ended
"""
