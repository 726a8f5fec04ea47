"""`serried profile`: where the time of a few steps goes, with a trace for Perfetto."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from serried.base.errors import SerriedError, UsageError
from serried.base.text import fine_time, spell
from serried.cli import options, run_view
from serried.records import profiles
from serried.records.index import Selection
from serried.records.profiles import Profile, Wanted
from serried.records.status import statuses_of
from serried.schedulers.clusters import LOCAL
from serried.submission.foreground import Stopper, prepare_profile, run_to_end
from serried.views import console
from serried.views.text import fit, printable

_SHOWN = 10
_WIDEST = 44
"""Columns of an operator's name: with two times and their shares a line has 80."""
_MUCH = 0.1


def _steps(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, int]:  # noqa: ARG001
    match = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", text)
    if not match or int(match[1]) >= int(match[2]):
        hint = "`--steps 10:20` profiles steps 11 to 20, ten steps"
        raise UsageError(f"`--steps {text}` is not a range of steps", hint=hint)
    return int(match[1]), int(match[2])


def _ranks(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:  # noqa: ARG001
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise UsageError(f"`--rank {text}` is not a list of ranks", hint="for example `--rank 0,3`")
    return tuple(sorted({int(word) for word in text.split(",")}))


@click.command(cls=options.TakesCommand)
@options.experiment
@click.option("--steps", callback=_steps, default="10:20", metavar="A:B", help="After step A, to B.  [default: 10:20]")
@click.option("--rank", "chosen", callback=_ranks, default="0", metavar="R,R", help="Ranks to profile.  [default: 0]")
@click.option("--memory", is_flag=True, help="Add a snapshot of the GPU's memory.")
@click.option("--show", metavar="RUN", shell_complete=run_view.complete_runs, help="Print an earlier profile.")
@options.resources
@options.common
@options.yes
@click.option("--dry-run", is_flag=True, help="Print the plan and run nothing.")
@run_view.as_json
def command(
    *, steps: tuple[int, int], chosen: tuple[int, ...], memory: bool, show: str | None, as_json: bool, **values: Any
) -> None:
    r"""Profile a few steps of a training: operators, waiting for data, idle GPU, and a trace.

    \b
    serried profile                                   the only experiment, here
    serried profile train --steps 100:110 --rank 0,3  these steps, two ranks
    serried profile train --cluster fir               as a job of a cluster
    serried profile --ranks 2 -- python train.py
    serried profile --show last                       the last profile again

    A step is a call of `step()` of the first optimizer. A program that does not use the training library
    needs one line: `import serried.train.profile`. The run ends once the steps are profiled.
    """
    if show is not None:
        selection = run_view.select_one(show)
        wanted = Wanted.of(selection.record)
        if wanted is None:
            raise UsageError(f"run `{selection}` was not profiled", hint="serried profile EXPERIMENT")
        _report(selection, wanted, as_json=as_json)
        return
    if values["ranks"] == "0" or "," in (values["ranks"] or ""):
        hint = f"ranks to profile: --rank {values['ranks']}"
        raise UsageError("`--ranks` is the number of ranks on each node", hint=hint)
    wanted, dry_run = Wanted(*steps, chosen, memory), values["dry_run"]
    is_here = values["cluster"] in (None, LOCAL)
    request = options.request(values, values["cluster"] or LOCAL)
    if is_here:
        request = request.with_setting("project.snapshot", value=False)
    with options.progress(dry_run=dry_run) as observe:
        prepared = prepare_profile(request, wanted, Path.cwd(), observe=observe)
    if dry_run:
        options.dry_run(prepared, as_json=as_json)
        return
    options.say_about(prepared.notes, prepared.warnings)
    options.agree(prepared.warnings, yes=values["yes"])
    stopper = Stopper(prepared.plan.run, prepared.plan.directory, wanted)
    with console.status_line(f"profiling steps {steps[0]} to {steps[1]} of run {prepared.plan.run}"):
        done = run_to_end(prepared, here=is_here, tick=stopper.tick)
    is_written = any(one.state == profiles.WRITTEN for one in profiles.read(done.place, wanted.ranks))
    if not stopper.has_stopped and not is_written:
        done.check()  # the program's own failure comes first
    _report(Selection(done.record), wanted, as_json=as_json)


def _report(selection: Selection, wanted: Wanted, *, as_json: bool) -> None:
    """Raises SerriedError if no chosen rank has a profile."""
    ranks = profiles.read(selection.place, wanted.ranks)
    written = [one for one in ranks if one.state == profiles.WRITTEN]
    missing = [(one, *_why_missing(one, wanted, selection)) for one in ranks if one.state != profiles.WRITTEN]
    if not written:
        _, message, hint = missing[0]
        raise SerriedError(message, hint=hint)
    if as_json:
        documents = [
            {
                "rank": one.rank,
                "state": one.state or None,
                "host": one.host or None,
                "message": one.message or None,
                "steps": list(one.steps) if one.trace else None,
                "seconds": one.seconds if one.trace else None,
                "step_seconds": one.step_seconds if one.trace else None,
                "wait_share": one.wait_share,
                "gpu": one.gpu or None,
                "gpu_idle_share": one.idle_share,
                "operators": list(one.operators),
                "trace": str(one.trace) if one.trace else None,
                "memory": str(one.memory) if one.memory else None,
            }
            for one in ranks
        ]
        console.out_json(run=str(selection), ranks=documents)
    else:
        _print(selection, written, wanted)
    for _, message, hint in missing:
        console.warning(message, hint=hint)
    if wanted.memory and not any(one.memory for one in written):
        console.warning("`--memory` needs CUDA, and the profiled ranks used no GPU")


def _why_missing(one: Profile, wanted: Wanted, selection: Selection) -> tuple[str, str]:
    rank, begin, length = f"rank {one.rank}", wanted.begin, wanted.end - wanted.begin
    if one.state == profiles.FAILED:
        return f"torch's profiler failed on {rank}: {printable(one.message)}", f"serried logs {selection}"
    if one.state == profiles.ENDED and one.count == 0:
        return f"{rank} took no step", "without an optimizer, call `serried.train.profile.step()` after each step"
    if one.state == profiles.ENDED:
        first = max(1, min(one.count // 2, one.count - length))
        hint = f"--steps {first}:{min(first + length, one.count)}" if one.count > 1 else "train for more steps"
        return f"{rank} ended after {one.count} steps, before step {begin + 1}", hint
    if one.state:
        state = statuses_of([selection])[0]
        what = "while it recorded" if one.state == profiles.RECORDING else f"before step {begin + 1}"
        ended = f"ended {state.state}" if state.has_ended else "has not come so far"
        return f"{rank} has no profile: the run {ended} {what}", f"serried why {selection}"
    if selection.record.plan.script is not None:
        return (
            f"{rank} wrote no profile: the job script did not start it, or not with the training library",
            "put `import serried.train.profile` at the top of the program",
        )
    return (
        f"{rank} wrote no profile: its program does not use the training library",
        "put `import serried.train.profile` at its top",
    )


def _print(selection: Selection, written: list[Profile], wanted: Wanted) -> None:
    first = written[0]
    has_gpu = first.gpu_seconds is not None
    console.out(f"run {selection}, steps {first.steps[0] + 1} to {first.steps[1]}")
    console.out()
    rows = []
    for one in written:
        shares = _share(one.wait_share), _share(one.idle_share)
        rows.append([str(one.rank), printable(one.host), fine_time(one.step_seconds), *shares])
    console.out_table(["RANK", "NODE", "STEP", "DATA WAIT", "GPU IDLE"], rows)
    console.out()
    heads = [f"OPERATOR, RANK {first.rank}", "CALLS", *(["GPU"] if has_gpu else []), "CPU", "SHARE"]
    rows = []
    for row in first.operators[:_SHOWN]:
        times = [fine_time(row[f"{device}_seconds"]) for device in (("gpu", "cpu") if has_gpu else ("cpu",))]
        rows.append([fit(row["name"], _WIDEST), str(row["calls"]), *times, _share(row["share"])])
    console.out_table(heads, rows)
    console.out()
    if first.steps[1] < wanted.end:
        console.out(f"the program ended after step {first.steps[1]}, so the profile has no more steps")
    if first.wait_share is not None and first.wait_share > _MUCH:
        console.out("the training waits for data: more `num_workers`, or data on the nodes' disks")
    elif first.idle_share is not None and first.idle_share > _MUCH:
        console.out("the GPU waits for the CPU: larger batches or `torch.compile` help")
    elif first.gpu_seconds is None:
        console.out("no GPU took part: times and shares are those of the CPU")
    else:
        console.out("the GPU is busy: mixed precision, `torch.compile` or more GPUs help")
    for one in written:
        size = spell(one.trace.stat().st_size) if one.trace and one.trace.exists() else "gone"
        console.out(f"trace of rank {one.rank}: {one.trace} ({size})")
        if one.memory:
            console.out(f"memory of rank {one.rank}: {one.memory}, for https://docs.pytorch.org/memory_viz")
    console.out("open it: https://ui.perfetto.dev, `Open trace file`; it stays in your browser")


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
