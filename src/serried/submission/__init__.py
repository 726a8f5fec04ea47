"""From a plan to a job, at most once.

prepare(…)     everything that can be refused is refused; nothing is touched    prepare.py
deliver(…)     intent, run directory, scheduler, record                          deliver.py
reconcile(…)   what became of a submission whose end nobody saw                  reconcile.py
run_here(…)    the same run directory, in the foreground                         foreground.py
"""

from serried.submission.deliver import deliver
from serried.submission.prepare import Prepared, prepare
from serried.submission.reconcile import forget, reconcile, reconcile_all

__all__ = ["Prepared", "deliver", "forget", "prepare", "reconcile", "reconcile_all"]
