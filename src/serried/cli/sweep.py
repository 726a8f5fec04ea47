"""`serried sweep`: submit a range of settings as an array, and look at the results."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from serried import config
from serried.base.errors import Risk, SerriedError, SubmissionUncertain, UsageError, did_you_mean
from serried.base.text import duration
from serried.cli import GroupWithHelp, options, run_view, submit
from serried.cli import stop as stop_view
from serried.config.values import BadValue
from serried.records.index import Selection
from serried.schema import printed_metric, tracking
from serried.schema.command_lines import as_argument
from serried.schema.names import LAST_RUN
from serried.schema.plan import Sweep
from serried.submission.again import MoreTrials, prepare_again
from serried.submission.deliver import Prepared
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide
from serried.sweeps import definition, results, wandb_service
from serried.sweeps.definition import GRID, RANDOM, DefinitionError, Metric, Parameter, SweepDefinition
from serried.sweeps.results import SeedGroup, SweepResults
from serried.views import console, pictures
from serried.views.console import Cell

SUBMIT = "submit"
TO_CREATE = "ENTITY/PROJECT/ID"
"""The id of a sweep that W&B does not have yet."""
_FILES = (".yaml", ".yml", ".json")
_SHOWN = 20
_IMPORTANT = 5


@click.group(cls=GroupWithHelp, default=SUBMIT)
def command() -> None:
    r"""Train with settings from a range: an array with a trial for each task, and a table of the results.

    \b
    serried sweep train --grid lr=1e-3,1e-4 --seeds 5 --metric val_acc:max
    serried sweep train --random lr=log:1e-5..1e-1 --count 24 --parallel 4
    serried sweep sweep.yaml                     a W&B sweep file
    serried sweep ada/digits/x1y2z3 --count 20   agents for a sweep at W&B
    serried sweep tune                           [sweeps.tune] of serried.toml
    serried sweep show k3f9q2                    the trials, the best first
    serried submit train --from-sweep k3f9q2     the best parameters

    The command gets the parameters as `--lr=0.001`, or where it says `{config.lr}`. `serried sweep submit --help` lists
    the options of a new sweep.
    """


def _number(flag: str, about: str) -> Callable[[Any], Any]:
    return click.option(flag, type=click.IntRange(1), metavar="N", help=about)


_RANDOM = "Draw values: log:1e-6..1e-2, uniform:0..1, int:1..8, or one of a,b,c."
_METHOD = "For parameters of a file or table: try all values, or draw them; bayes draws near good trials, with Optuna."
_PLOT = "Also draw the trials: `sweep.png` writes sweep-history.png and others; or .svg, .pdf."
_new_code = click.option("--new-code", is_flag=True, help="Use the present code of the project, not that of the sweep.")


class TakesSweep(options.TakesCommand):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            error.hint = _meant(words[0]) or error.hint
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return ["[OPTIONS]", "[EXPERIMENT | SWEEP | FILE | ID | -- COMMAND...]"]


def _meant(word: str) -> str | None:
    """`did you mean `serried sweep show`?` for `sho`."""
    return did_you_mean(word, command.commands, command="serried sweep")


@command.command(SUBMIT, cls=TakesSweep)
@click.argument("experiment", required=False, type=run_view.TO_SWEEP)
@click.option("--grid", "grids", metavar="NAME=A,B,C", multiple=True, help="Try each of these values.")
@click.option("--random", "ranges", metavar="NAME=RANGE", multiple=True, help=_RANDOM)
@_number("--count", "Number of draws; of a grid, the most trials.")
@click.option("--method", type=click.Choice(definition.METHODS), help=_METHOD)
@_number("--seeds", "N trials of each combination, with `seed` 0 to N-1.")
@_number("--workers", "At most N jobs at once, each of which runs one trial after another.")
@click.option("--metric", metavar="NAME:max|min", help="The logged value that orders the trials.")
@click.option("--metric-from", metavar="stdout:REGEX|file:PATH:KEY", help="Where the program prints or writes it.")
@click.option("--wandb", "at_wandb", is_flag=True, help="Create the sweep of FILE at W&B, which draws the parameters.")
@options.flags
@options.yes
@options.wait
def submit_command(
    *,
    experiment: str | None,
    grids: tuple[str, ...],
    ranges: tuple[str, ...],
    method: str | None,
    metric: str | None,
    metric_from: str | None,
    at_wandb: bool,
    yes: bool,
    wait: bool,
    **values: Any,
) -> None:
    r"""Submit a sweep: all trials in one array.

    \b
    serried sweep train --grid lr=1e-3,1e-4 --grid width=64,128
    serried sweep train --random lr=log:1e-5..1e-1 --count 24 --metric val_acc:max
    serried sweep --grid lr=1e-3,1e-4 --gpus 1 -- python train.py
    serried sweep sweep.yaml

    With --grid and --random, each draw is tried with all combinations of the grid.
    """
    own, drawn = _parameters_of(grids, ranges)
    if at_wandb:
        defined = _to_create(experiment)
        word = defined.experiment
    else:
        defined, word = _find_definition(experiment, is_complete=bool(own))
    if defined.id and (own or method or values["seeds"]):
        hint = "leave out `--grid`, `--random`, `--method` and `--seeds`, or change the definition at W&B"
        raise UsageError(f"`{defined.id}` has its parameters at W&B", hint=hint)
    request, defined = _with_experiment(options.request({**values, "experiment": word}, values["cluster"]), defined)
    if request.name is None and defined.name:
        request = request._replace(name=defined.name)
    sweep = dataclasses.replace(
        defined,
        parameters={**defined.parameters, **own},
        drawn=drawn,
        method=method or (defined.method if defined.parameters else GRID),
        run_cap=values["count"] or defined.run_cap,
        seeds=values["seeds"] or defined.seeds,
        workers=values["workers"] or (None if request.parallel else defined.workers),
        metric=_metric_of(metric, metric_from, defined),
    )
    drawn_names = [name for name, is_drawn in drawn.items() if is_drawn]
    if method == GRID and drawn_names:
        message = f"`--random {drawn_names[0]}` and `--method grid` exclude each other"
        raise UsageError(message, hint="leave out `--method`")
    if method == RANDOM and not sweep.random_parameters:
        hint = f"`--random {next(iter(sweep.parameters), 'NAME')}=…` draws its values"
        raise UsageError("`--method random` draws nothing: `--grid` tries all of its values", hint=hint)
    request = request._replace(sweep=sweep)
    created, dry_run = None, values["dry_run"]
    if at_wandb and not dry_run:
        created, yes = _create(request, Path(str(experiment)), yes=yes)
        request = request._replace(sweep=dataclasses.replace(sweep, id=created))
    try:
        prepared = _prepare(request, dry_run=dry_run)
        submit.send(prepared, dry_run=dry_run, as_json=values["as_json"], yes=yes, wait=wait)
    except SerriedError as error:
        if created and not isinstance(error, SubmissionUncertain):
            again = f"serried sweep {shlex.quote(created)} --count {sweep.size}"
            error.hint = f"{error.hint or 'the sweep at W&B exists'}; then `{again}` starts its agents"
        raise


def _prepare(request: Request, *, dry_run: bool) -> Prepared:
    decided = decide(request, Path.cwd(), os.environ)
    with options.progress(dry_run=dry_run) as observe:
        prepared = prepare(
            decided.plan, decided.resolved, os.environ, jobs=decided.jobs, trials=decided.trials, observe=observe
        )
    sweep = request.sweep or SweepDefinition({})
    warnings, notes = (*prepared.warnings, *sweep.warnings), (*prepared.notes, *sweep.notes)
    return prepared._replace(warnings=warnings, notes=notes)


def _create(request: Request, file: Path, *, yes: bool) -> tuple[str, bool]:
    """Create the sweep of a file at W&B. Returns its id, and whether the user has confirmed the request.

    A request that cannot be submitted is refused first: nothing deletes a sweep at W&B again.
    """
    plan = _prepare(request, dry_run=True)
    if any(isinstance(text, Risk) for text in plan.warnings) and not yes:
        options.say_about((), plan.warnings)
        options.agree(plan.warnings, "create the sweep at W&B anyway?")
        yes = True
    decided = decide(request, Path.cwd(), os.environ).plan
    environ = {**os.environ, **decided.environment.env}
    created = wandb_service.create(file, environ, Path(decided.source.directory))
    console.note(f"created the sweep `{created}` at W&B")
    return created, yes


def _to_create(word: str | None) -> SweepDefinition:
    """A sweep that W&B does not have yet. Raises UsageError without a file."""
    if word is None or Path(word).suffix not in _FILES:
        raise UsageError("`--wandb` needs a W&B sweep file", hint="`serried sweep sweep.yaml --wandb --count 20`")
    own = definition.read_file(Path(word))
    is_finite = own.run_cap is not None or own.method == GRID
    return SweepDefinition(
        {},
        id=TO_CREATE,
        name=own.name,
        metric=own.metric,
        run_cap=own.distinct if is_finite else None,
        experiment=own.experiment,
        parallel=own.parallel,
        workers=own.workers,
    )


def _metric_of(metric: str | None, source: str | None, defined: SweepDefinition) -> Metric | None:
    own = definition.metric_of(metric) if metric else defined.metric
    if source is None:
        return own
    if own is None:
        raise UsageError("`--metric-from` needs the name of the metric", hint="`--metric val_acc:max`")
    try:
        printed_metric.check(source)
    except ValueError as error:
        hint = f"`--metric-from '{printed_metric.EXAMPLE}'`"
        raise UsageError(f"`--metric-from {source}` {error}", hint=hint) from None
    return dataclasses.replace(own, source=source)


def _parameters_of(grids: Sequence[str], ranges: Sequence[str]) -> tuple[dict[str, Parameter], dict[str, bool]]:
    """The parameters of `--grid lr=1e-3,1e-4` and `--random lr=log:1e-5..1e-1`, and whether each is drawn."""
    found: dict[str, Parameter] = {}
    drawn: dict[str, bool] = {}
    for flag, read, example, text in [
        *(("--grid", definition.read_values, "lr=1e-3,1e-4", text) for text in grids),
        *(("--random", definition.read_range, "lr=log:1e-5..1e-1", text) for text in ranges),
    ]:
        name, equals, values = text.partition("=")
        if not equals or not name or name.split() != [name] or any(mark in name for mark in "{}"):
            raise UsageError(f"`{flag} {text}` is not `NAME=VALUES`", hint=f"for example `{flag} {example}`")
        try:
            parameter = read(values)
        except BadValue as error:
            raise UsageError(f"`{flag} {name}` {error}", hint=error.hint) from None
        if name in found:
            raise UsageError(f"`{name}` is given twice", hint="list all its values in one `--grid`")
        found[name], drawn[name] = parameter, flag == "--random"
    return found, drawn


def _with_experiment(request: Request, sweep: SweepDefinition) -> tuple[Request, SweepDefinition]:
    """The request with the command of the sweep and the experiment whose settings hold, and the sweep with warnings.

    A sweep with its own command, here or at W&B, replaces the command of the experiment that it names, or else of the
    project's only one.
    """
    if request.command is not None or not (sweep.command or sweep.id):
        return request, sweep
    request = request._replace(command=sweep.command or None)
    known = () if request.experiment else config.catalogue(Path.cwd(), os.environ).experiments
    if len(known) == 1:
        return request._replace(experiment=known[0]), sweep
    if not known:
        return request, sweep
    listed = ", ".join(f"`{name}`" for name in known)
    key = "`experiment` beside `id`, in a table `[sweeps.NAME]`," if sweep.id else "the key `experiment`"
    warning = f"the sweep has a command and names no experiment, so none of {listed} applies: {key} selects one"
    return request, dataclasses.replace(sweep, warnings=(*sweep.warnings, warning))


def _find_definition(word: str | None, *, is_complete: bool) -> tuple[SweepDefinition, str | None]:
    """The sweep that the word names, and the experiment. `is_complete`: the command line has parameters."""
    known = config.catalogue(Path.cwd(), os.environ)
    if word is not None and definition.is_id(word) and word not in known.sweeps and not Path(word).exists():
        return SweepDefinition({}, id=word), None
    if word is None and not is_complete and len(known.sweeps) == 1:
        word = next(iter(known.sweeps))
    if word in known.sweeps:
        document = known.sweeps[str(word)]
        try:
            sweep = definition.read_table(document.tables["sweeps"][word])
        except DefinitionError as wrong:
            raise document.error(wrong.message, ("sweeps", str(word), *wrong.keys), wrong.hint) from None
        return sweep, sweep.experiment
    if word is not None and word not in known.experiments and Path(word).suffix in _FILES:
        sweep = definition.read_file(Path(word))
        return sweep, sweep.experiment
    if not is_complete:
        names_ = ", ".join(f"`{name}`" for name in known.sweeps)
        hint = "`--grid lr=1e-3,1e-4`, `--random lr=log:1e-5..1e-1 --count 20`, or a W&B sweep file"
        if word is not None and word not in known.experiments:
            hint = did_you_mean(word, known.sweeps) or _meant(word) or (f"sweeps here: {names_}" if names_ else hint)
            raise UsageError(f"`{word}` is neither a sweep nor a file", hint=hint)
        raise UsageError("the sweep has no parameters", hint=hint)
    return SweepDefinition({}), word


@command.command("show")
@click.argument("run", metavar="[RUN]", default=LAST_RUN, type=run_view.SWEEP)
@click.option("--metric", metavar="NAME:max|min", help="Order by another logged value.")
@click.option("--all", "everything", is_flag=True, help="List every trial.")
@click.option("--best", is_flag=True, help="Print the best parameters alone, as arguments; with --json as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all trials as CSV.")
@run_view.as_json
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE", help=_PLOT)
def show_command(
    *, run: str, metric: str | None, everything: bool, best: bool, as_csv: bool, as_json: bool, picture: Path | None
) -> None:
    r"""Show the trials with their results, the best first.

    \b
    serried sweep show k3f9q2
    serried sweep show k3f9q2 --metric loss:min
    serried sweep show k3f9q2 --best             --lr=0.001 --width=64
    serried sweep show k3f9q2 --best --json > best.json
    serried sweep show k3f9q2 --plot sweep.png   pictures of the trials

    A trial's value is the one that it logged last, by `run.log` in the session of serried.train, or that `metric.from`
    finds.
    """
    if as_csv and (as_json or best):
        raise UsageError("`--csv` excludes `--json` and `--best`", hint="leave one of them out")
    if picture is not None:
        pictures.check(picture, "optuna")
    found = results.results_of(run_view.select(run), metric)
    if picture is not None:
        console.note(f"wrote {', '.join(map(str, pictures.draw_sweep(found, picture)))}")
    if best and as_json:
        console.out(json.dumps(found.best, ensure_ascii=False))
    elif best:
        console.out(shlex.join(f"--{name}={as_argument(value)}" for name, value in found.best.items()))
    elif as_json:
        console.out_json(
            sweep=found.sweep.first,
            service=found.sweep.service or None,
            runs=[status.record.id for status in found.runs],
            metric=found.sweep.metric or None,
            goal=found.sweep.goal,
            trials=[trial.to_json() for trial in found.trials],
            groups=[group.to_json() for group in found.groups],
            importance=pictures.importance_of(found) or None,
        )
    elif as_csv:
        console.out(_as_csv(found).rstrip("\n"))
    else:
        _show(found, everything=everything)
    run_view.warn_if_stale(found.runs)


def _parameter_names(found: SweepResults) -> list[str]:
    return list(dict.fromkeys(name for trial in found.trials for name in trial.parameters))


def _as_csv(found: SweepResults) -> str:
    parameters = _parameter_names(found)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", found.sweep.metric or "value", "seconds", *parameters])
    for trial in found.trials:
        own = [as_argument(trial.parameters[name]) if name in trial.parameters else "" for name in parameters]
        writer.writerow([trial.number, trial.state, trial.value, trial.seconds, *own])
    return text.getvalue()


def _show(found: SweepResults, *, everything: bool) -> None:
    sweep, trials = found.sweep, found.trials
    counts = Counter(trial.state for trial in trials)
    states = ", ".join(f"{number} {state}" for state, number in counts.most_common())
    name = found.runs[0].summary.name if found.runs and found.runs[0].summary else "?"
    order = f"; {sweep.goal} {sweep.metric}" if sweep.metric else ""
    console.say(f"sweep {sweep.first} ({name}): {len(trials)} trials, {states}{order}")
    if sweep.service and found.runs:
        own = found.runs[0].record.plan.environment.env
        console.say(tracking.sweep_page(sweep.service, {**os.environ, **own}))
    shown = list(trials)
    if not everything:  # the best trials, and the first failed ones
        shown = [*trials[:_SHOWN], *[trial for trial in trials[_SHOWN:] if trial.has_failed][: _SHOWN // 4]]
    parameters, metrics = _parameter_names(found), [sweep.metric] if sweep.metric else []
    heads = ["TRIAL", *(name.upper() for name in (*metrics, *parameters)), "STATE", "TIME", "NOTE"]
    rows: list[list[str | Cell]] = [
        [
            str(trial.number),
            *(_figure(trial.value) for _ in metrics),
            *(_figure(trial.parameters[name]) if name in trial.parameters else "-" for name in parameters),
            Cell(trial.state, console.state_style(trial.state)),
            duration(trial.seconds) if trial.seconds is not None else "-",
            trial.message,
        ]
        for trial in shown
    ]
    console.out_table(heads, rows)
    if len(shown) < len(trials):
        console.say(f"{len(trials) - len(shown)} more: serried sweep show {sweep.first} --all")
    if found.groups and sweep.metric:
        _draw_groups(found, found.groups if everything else found.groups[:_SHOWN])
    if shares := pictures.importance_of(found):
        most = ", ".join(f"{name} {share:.2f}" for name, share in list(shares.items())[:_IMPORTANT])
        console.say(f"importance: {most}")
    if sweep.metric and any(trial.is_complete for trial in trials) and all(trial.value is None for trial in trials):
        how = f"reported `{sweep.metric}` by `{sweep.source}`" if sweep.source else f"logged `{sweep.metric}`"
        console.note(f"no trial has {how}")
    _suggest(found)


def _figure(value: Any) -> str:
    """A number with four digits, other values as arguments show them."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else as_argument(value)


def _draw_groups(found: SweepResults, shown: Sequence[SeedGroup]) -> None:
    console.out()
    parameters = list(dict.fromkeys(name for group in found.groups for name in group.parameters))
    rows = [
        [
            _figure(group.mean),
            "-" if group.deviation is None else f"{group.deviation:.2g}",
            str(len(group.values)),
            *(_figure(group.parameters.get(name)) for name in parameters),
        ]
        for group in shown
    ]
    console.out_table([f"MEAN {found.sweep.metric.upper()}", "±", "SEEDS", *map(str.upper, parameters)], rows)


def _suggest(found: SweepResults) -> None:
    steps = []
    failed = [trial for trial in found.trials if trial.has_failed]
    if failed:
        steps.append((f"serried why {failed[0].id}", "what happened, and what to do"))
        if not found.sweep.service:
            steps.append((f"serried sweep retry {found.sweep.first}", "repeat what failed, from its checkpoints"))
    if found.sweep.metric and found.best_so_far is not None:
        steps.append((f"serried sweep show {found.sweep.first} --best", "the best parameters"))
    if steps:
        console.next_steps(steps)


def _whole(run: str, of_one: str, *, new_code: bool = False) -> Selection:
    """The run, which is not one trial. `of_one` is the command for a trial."""
    selection = run_view.select(run, own=True, new_code=new_code)
    if selection.task is not None:
        raise UsageError(f"`{selection}` is one trial of a sweep", hint=f"{of_one} {selection}")
    return selection


@command.command("retry")
@click.argument("run", metavar="RUN", type=run_view.SWEEP)
@click.option("--fresh", is_flag=True, help="Train from the start, not from the trials' newest checkpoints.")
@_new_code
@options.sending
def retry_command(*, run: str, fresh: bool, new_code: bool, **how: bool) -> None:
    r"""Repeat failed trials from their checkpoints.

    \b
    serried sweep retry k3f9q2
    serried sweep retry k3f9q2 --new-code     after a bug fix

    The trials keep their numbers and parameters, in a further run of the sweep.
    """
    found = results.results_of(_whole(run, "serried rerun", new_code=new_code), metric="")
    by_run: dict[str, list[int]] = {}
    for trial in sorted(found.trials, key=lambda trial: trial.number):
        if trial.has_failed:
            by_run.setdefault(trial.run, []).append(trial.number)
    if not by_run:
        console.note(f"nothing to repeat: no trial of sweep `{found.sweep.first}` has failed")
        if how["as_json"]:
            console.out_json(runs=[])
        return
    records = [status.record for status in found.runs if status.record.id in by_run]
    with options.progress(dry_run=how["dry_run"]) as observe:
        changes: dict[str, Any] = {"fresh": fresh, "new_code": new_code, "observe": observe}
        prepared = [
            prepare_again(Selection(record), os.environ, tasks=by_run[record.id], **changes) for record in records
        ]
    submit.send(*prepared, **how)


@command.command("add")
@click.argument("run", metavar="RUN", type=run_view.SWEEP)
@click.option("--count", type=click.IntRange(1), required=True, metavar="N", help="Number of further draws.")
@_new_code
@options.sending
def add_command(*, run: str, count: int, new_code: bool, **how: bool) -> None:
    r"""Add random trials to a sweep: the next N draws from its ranges.

    \b
    serried sweep add k3f9q2 --count 20
    """
    records = results.runs_of(_whole(run, "serried rerun", new_code=new_code))
    record = max(records, key=lambda one: max(one.plan.array.indices if one.plan.array else (0,)))
    sweep = record.plan.sweep or Sweep(record.id, ())
    before = SweepDefinition.from_json(sweep.definition)
    after = dataclasses.replace(before, run_cap=(before.run_cap or before.size) + count)
    if after.size == before.size:
        hint = "submit another sweep with the values to add"
        raise UsageError(f"sweep `{sweep.first}` has all points of its grid", hint=hint)
    after.check()
    trials = dict(enumerate(after.trials(before.size), start=before.size))
    added = MoreTrials(sweep._replace(definition=after.to_json()), trials)
    with options.progress(dry_run=how["dry_run"]) as observe:
        prepared = prepare_again(Selection(record), os.environ, added=added, new_code=new_code, observe=observe)
    submit.send(prepared, **how)


@command.command("stop")
@click.argument("run", metavar="RUN", type=run_view.SWEEP)
@run_view.without_asking
@click.option("--save", is_flag=True, help="Let ranks save first, as before the time limit.")
@click.option("--now", is_flag=True, help="Cancel at once; ranks cannot save.")
@click.pass_context
def stop_command(ctx: click.Context, *, run: str, yes: bool, save: bool, now: bool) -> None:
    """Stop all trials of a sweep, in all its runs."""
    runs = tuple(record.id for record in results.runs_of(_whole(run, "serried stop")))
    ctx.invoke(stop_view.command, runs=runs, yes=yes, save=save, now=now)
