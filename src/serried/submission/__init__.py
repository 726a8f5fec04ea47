"""From a plan to a job, at most once.

    request.decide(…)        a request as a plan
    prepare.prepare(…)       all checks; an environment is built and data is prepared if needed
    deliver.deliver(…)       intent, run directory, scheduler, record
    foreground.run_here(…)   the same run directory, on this machine
    reconcile.reconcile(…)   the outcome of an uncertain submission

Readers import only the last, which needs nothing from the others.
"""
