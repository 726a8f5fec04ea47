"""What a sweep with a search needs from the submitting side: a Python with Optuna, and a place for its journal."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from serried.base.errors import UsageError, install_hint
from serried.schema.layout import RunDirectory
from serried.schema.plan import Plan
from serried.submission import environments

MODULE = "optuna"


def settle(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """The plan with the place of the search's journal, and the Pythons that have Optuna.

    A later run of the sweep uses the journal of the first one while that exists. Raises UsageError without Optuna.
    """
    sweep = plan.sweep
    if sweep is None or sweep.search is None:
        return plan
    pythons = tuple(dict.fromkeys(_pythons(environ)))
    if not pythons:
        what = "a Bayesian search" if sweep.search.method == "bayes" else "`early_terminate`"
        raise UsageError(
            f"{what} needs Optuna, which neither Serried's Python nor the active environment has",
            hint=install_hint("sweeps"),
        )
    journal = sweep.search.journal
    if not journal or not Path(journal).parents[1].is_dir():
        journal = str(RunDirectory(Path(plan.directory)).search)
    search = sweep.search._replace(journal=journal, pythons=pythons)
    return plan._replace(sweep=sweep._replace(search=search))


def _pythons(environ: Mapping[str, str]) -> Iterator[str]:
    if importlib.util.find_spec(MODULE) is not None:
        yield sys.executable
    prefix = environments.active_prefix(environ)
    if prefix and any(Path(prefix).glob(f"lib/python3*/site-packages/{MODULE}")):
        yield str(Path(prefix) / "bin" / "python")
