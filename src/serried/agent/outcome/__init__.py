"""How an attempt ended. Pure, except that `checkpoint_progress` and `diagnose` read files.

evidence, checkpoint_progress   what is known: the journals and the checkpoints
verdict, diagnose               what that means, and one code for why a rank failed
reconcile                       the same with what only job.sh or the scheduler knows
"""
