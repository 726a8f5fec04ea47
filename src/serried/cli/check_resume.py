"""`serried check-resume`: does a stopped and resumed training learn the same as an uninterrupted one?"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

import click

from serried.base.errors import UsageError
from serried.base.text import counted
from serried.cli import options, run_view
from serried.resume_check.check import DOING, STOPPED, WHOLE, Observer, Rehearsal, Terms, prepare_take, rehearse
from serried.resume_check.judge import ORDER, explain, is_rounding
from serried.schedulers.clusters import LOCAL
from serried.submission.deliver import Prepared
from serried.views import console
from serried.views.text import printable

_SHOWN = 8


@click.command(cls=options.TakesCommand)
@options.experiment
@options.resources
@options.common
@click.option("--stops", type=click.IntRange(1), default=3, metavar="N", help="Number of stops.  [default: 3]")
@click.option("--steps", type=click.IntRange(2), metavar="N", help="End the training after N steps.")
@click.option("--seed", type=int, metavar="N", help="Random seed for choosing the stop steps.")
@click.option("--tolerance", type=click.FloatRange(0, 1), metavar="X", help="Largest relative difference; 0 is exact.")
@click.option("--ignore", multiple=True, metavar="NAME", help="Ignore metrics whose names match, e.g. `grad_*`.")
@options.yes
@options.dry_runs
@run_view.as_json
def command(*, cluster: str | None, yes: bool, dry_run: bool, as_json: bool, **values: Any) -> None:
    r"""Check that a training resumes exactly after a stop.

    \b
    serried check-resume                          the only experiment, here
    serried check-resume train --steps 200        its first 200 steps
    serried check-resume train --stops 10         stopped ten times
    serried check-resume --ranks 2 -- python train.py
    serried check-resume train --cluster fir      as jobs of a cluster

    The training runs to its end once. Then it runs again, is stopped after random steps as at a time
    limit, and resumes. All metrics of `run.log` except timings must agree on every rank: bit by bit on
    CPUs, within 0.001 elsewhere. If they differ, the report names the first step that differs and the
    state that was not restored, and the exit code is 1. Shorten a long training with `--steps`.
    """
    is_here = cluster in (None, LOCAL)
    seed = secrets.randbelow(10_000) if values["seed"] is None else values["seed"]
    terms = Terms(values["stops"], seed, is_here, values["steps"] or 0, values["tolerance"], tuple(values["ignore"]))
    if 0 < terms.steps <= terms.stops:
        hint = f"`--steps {terms.stops + 1}` or more"
        raise UsageError(f"{terms.steps} steps are too few to be stopped {terms.stops} times", hint=hint)
    asked = options.request(values, cluster or LOCAL)
    if is_here:
        asked = asked.with_setting("project.snapshot", value=False)
    if dry_run:
        options.dry_run(prepare_take(asked, WHOLE, (), terms.steps, Path.cwd(), observe=None), as_json=as_json)
        console.say(f"then the same training again, stopped {terms.stops} times at random steps and resumed")
        return
    found = _watch(asked, terms, yes=yes)
    if as_json:
        console.out_json(**found.to_json())
    else:
        _print(found)
    sys.exit(0 if found.verdict.is_exact else 1)


def _watch(asked: Any, terms: Terms, *, yes: bool) -> Rehearsal:
    with console.status_line("checking") as line:

        def tell(kind: str, prepared: Prepared) -> Observer:
            run = prepared.plan.run
            if kind == WHOLE:
                line.clear()
                options.say_about(prepared.notes, prepared.warnings)
                options.agree(prepared.warnings, yes=yes)
            line.update(f"{run}, {DOING[kind]}")

            def observe(step: int, stops: int) -> None:
                stopped = f", stopped {stops} of {terms.stops} times" if kind == STOPPED else ""
                line.update(f"{run}, {DOING[kind]}: step {step}{stopped}")

            return observe

        return rehearse(asked, Path.cwd(), terms, tell)


def _print(found: Rehearsal) -> None:
    verdict, comparison = found.verdict, found.verdict.comparison
    where = f"step{'s' * (len(verdict.stops) > 1)} {', '.join(map(str, verdict.stops))}"
    console.say(f"run {found.runs[WHOLE]} was not stopped; run {found.runs[STOPPED]} was, after {where}")
    if comparison.left_out:
        console.say(f"not compared: {printable(', '.join(comparison.left_out))}")
    how = "exactly" if verdict.tolerance == 0 else f"within {verdict.tolerance:g}"
    numbers = (
        f"{counted(len(verdict.stops), 'stop')}, {counted(found.steps, 'step')}, "
        f"{counted(len(comparison.differences), 'difference')}"
    )
    if verdict.is_exact:
        console.out(f"{console.style(f'resumes {how}', 'good')}: {numbers}")
        for one in (one for one in verdict.lost if one.role != ORDER):
            console.warning(f"no logged metric shows it yet, but {explain(one)}")
        return
    console.out(f"{console.style(f'does not resume {how}', 'bad')}: {numbers}")
    for text in _reasons(found):
        console.out(f"  {printable(text)}")
    console.say(f"to repeat the check with the same stops: --seed {found.terms.seed}")


def _reasons(found: Rehearsal) -> list[str]:
    verdict, differences = found.verdict, found.verdict.comparison.differences
    reasons = []
    if differences:
        one = differences[0]
        if not one.name:
            which = "resumed" if one.stopped is None else "uninterrupted"
            reasons.append(f"first at step {one.step}: rank {one.rank} has not logged it in the {which} run")
        else:
            reasons.append(
                f"first at step {one.step}: rank {one.rank} logged `{one.name}` {one.whole} uninterrupted, and "
                f"{one.stopped} resumed"
            )
    lost = [one for one in verdict.lost if differences or one.is_grave]
    reasons += [explain(one) for one in lost[:_SHOWN]]
    if len(lost) > _SHOWN:
        reasons.append(f"and {len(lost) - _SHOWN} more states; --json lists all")
    if found.is_deterministic is False:
        reasons.append("two uninterrupted runs differ too: this training is not deterministic")
    elif verdict.other_batch is not None and differences:
        why = "" if lost else ": the data did not continue at the same item; give the dataset to `run.loader`"
        reasons.append(f"in step {verdict.other_batch[0]} the model received another batch{why}")
    elif found.is_deterministic and is_rounding(differences[0]):
        reasons.append(
            "every state that Serried saves was restored, and the first difference is as small as rounding: numbers "
            "were added in another order, perhaps by torch or a library and not by the script"
        )
    elif found.is_deterministic:
        reasons.append("every state that Serried saves was restored; the script has another state that is not saved")
    return reasons
