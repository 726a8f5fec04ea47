"""The trials of a sweep: which trial a job runs, and the parameters of a search by Optuna when the trial starts.

draw      the role `draw`: the next trial of a job that runs several
search    the head's end, which waits for the parameters before ranks start and stops a trial that is pruned; the role
          `search`, which asks and watches the metric: the only module that imports Optuna
"""
