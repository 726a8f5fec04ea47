"""From a plan to a job, at most once.

    request.decide(…)        what was asked for, made into a plan
    prepare.prepare(…)       everything that can be refused is refused; environment and data are made if need be
    deliver.deliver(…)       intent, run directory, scheduler, record
    foreground.run_here(…)   the same run directory, here and now
    reconcile.reconcile(…)   what became of a submission whose end nobody saw

Readers import the last alone: it needs nothing of the others.
"""
