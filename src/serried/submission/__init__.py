"""From a request to a job, at most once.

A request enters; a record, a run directory and a job leave, or a refusal before anything was written.

    request.decide(…)        a request as a plan; the plan itself is made in plan.make_plan(…), which is pure
    prepare.prepare(…)       all checks; an environment is built and data is prepared if needed
    deliver.deliver(…)       intent, run directory, scheduler, record: the order of these writes must stay
    foreground.run_here(…)   the same run directory, on this machine
    again.prepare_again(…)   another run of an earlier one's plan
    tunnel.hold(…)           connections to a port of a run's node
    reconcile.find_out(…)    the outcome of an uncertain submission
    fetch.recover(…)         files that stayed on nodes

Readers import only the last two, which load others of this folder only for a job on a node.
"""
