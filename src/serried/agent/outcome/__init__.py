"""How an attempt ended. Pure, except that `checkpoint_progress` and `diagnose` read files.

evidence, checkpoint_progress   the journals and the checkpoints
verdict, diagnose               the verdict on them, and one code for a rank's failure
reconcile                       its revision by the knowledge of job.sh or the scheduler
"""
