"""Requests of the command line and the Python API as plans: one, several at once, or one for the job around us."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried import config, schedulers
from serried.base import NamedTuple
from serried.base.errors import Elsewhere, UsageError, did_you_mean
from serried.base.text import counted, iso
from serried.config import shell_words, toml, values
from serried.records import index
from serried.records.record import new_id
from serried.schema import command_lines, layout, names
from serried.schema.plan import After, Allocation, Array, Plan, Search, Sweep
from serried.submission.plan import gpu_note, make_plan, partition_note, task_commands
from serried.submission.snapshot import check_data

if TYPE_CHECKING:
    from serried.schedulers.survey import Inside
    from serried.sweeps.definition import SweepDefinition, Trial


class Request(NamedTuple):
    experiment: str | None = None
    command: Sequence[str] | None = None
    """Instead of the experiment's."""
    is_script: bool = False
    """`command` is a job script with its arguments."""
    script_text: bytes | None = None
    """The text of a job script that is not in a file."""
    overrides: Mapping[str, Any] = {}
    """By dotted key: `{"resources.nodes": 2}`."""
    cluster: str | None = None
    name: str | None = None
    array: str | None = None
    """Instead of the experiment's: `0-999`, `0-10:2`, `1,3%8`, or `off`."""
    parallel: int | None = None
    each: Path | None = None
    """A file of commands, one for each task."""
    tasks: int | None = None
    """Ranks on all nodes together, in place of `resources.ranks`."""
    cpus_per_rank: int | None = None
    """In place of `resources.cpus`, which counts per GPU if there are GPUs."""
    repeat: int | None = None
    """Tasks for each command, with consecutive seeds."""
    sweep: SweepDefinition | None = None
    """A trial for each task."""
    parameters: Mapping[str, Any] = {}
    """Of a trial of an earlier sweep: settings, which the command gets as in the sweep."""
    resume: str | None = None
    """A run, `last` or a path. The new run resumes from its newest complete checkpoint."""
    smoke: bool = False
    """Train a few steps, save, load and exit."""
    after: Sequence[str] | None = ()
    """Dependencies: `k3f9q2`, `last:any`; None for those in the file, which are experiments."""
    is_sent: bool = False
    """The plan is for the scheduler, not for a look at it."""

    def with_setting(self, key: str, *, value: Any) -> Request:
        return self._replace(overrides={**self.overrides, key: value})


class Decided(NamedTuple):
    plan: Plan
    resolved: config.Resolved
    each: tuple[tuple[str, ...], ...]
    trials: tuple[Trial, ...] = ()
    jobs: tuple[str, ...] = ()
    """Jobs that its scheduler waits for."""
    together: Mapping[str, str] = {}
    """Dependencies submitted by the same command: experiment -> condition."""


def decide(request: Request, directory: Path, environ: Mapping[str, str], *, among: Sequence[str] = ()) -> Decided:
    """The plan of a request in `directory`. Reads configuration, writes nothing. Raises UsageError.

    `among` are the experiments that are submitted with it.
    """
    if request.command is not None and not any(request.command):
        raise UsageError("no command after `--`", hint="for example `-- python train.py`")
    if request.sweep and request.sweep.id:
        request = _with_agent(request, request.sweep.id)
    if request.parameters:
        own = {toml.dotted(("config", *name.split("."))): value for name, value in request.parameters.items()}
        request = request._replace(overrides={**own, **request.overrides})
    each = shell_words.read_commands(directory / request.each) if request.each and not request.is_script else ()
    # With --commands the lines are the commands. The first stands for all where one command is needed.
    command = each[0] if each and request.command is None else request.command
    resolved = _resolve(request, command, directory, environ)
    if request.tasks is not None or request.cpus_per_rank is not None:
        request = _sized_by_tasks(request, resolved.experiment.resources)
        resolved = _resolve(request, command, directory, environ)
    if resolved.script and (request.each or request.repeat):
        hint = f"`--array 0-{(request.repeat or 10) - 1}` runs it as a task for each index"
        raise UsageError("a job script runs as it is, so `--commands` and `--repeat` do not apply to it", hint=hint)
    script_array = resolved.script.directives.array if resolved.script else None
    trials = _trials(request)
    if request.sweep:
        at_once = request.sweep.workers or request.parallel or request.sweep.parallel
        array: Array | None = Array(tuple(range(len(trials))), at_once, draws=bool(request.sweep.workers))
    else:
        array, each = _array(request, resolved.experiment.array or script_array, each)
    with _hint_at_clusters(resolved, directory, environ):
        plan = make_plan(resolved, run_id=new_id(), created=iso(time.time()), array=array, name=request.name)
    plan = _with_parameters(plan, request.parameters)
    if request.sweep:
        plan = _with_sweep(plan, request.sweep.with_source(resolved.experiment.metric))
    each = tuple(task_commands(resolved.experiment, plan, each)) if each else ()
    resolved = resolved._replace(notes=(*resolved.notes, *filter(None, _notes(request, plan, resolved, each))))
    if request.smoke:
        plan = plan._replace(smoke=names.SMOKE_STEPS)
    if request.resume is not None:
        from serried.submission.again import resume_from

        beginning = resume_from(request.resume, array, directory)
        plan = plan._replace(resume=beginning.resume)
        resolved = resolved._replace(warnings=(*resolved.warnings, *beginning.warnings))
    return _behind(Decided(plan, resolved, each, trials), request, among)


@contextlib.contextmanager
def _hint_at_clusters(resolved: config.Resolved, directory: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """If this machine cannot run the request, name the clusters that the user has described or logged in to."""
    try:
        yield
    except UsageError as error:
        found, used = config.catalogue(directory, environ).clusters, index.clusters()
        known = [each.name for each in found if each.login and (each.name in used or not each.is_shipped)]
        if known and resolved.cluster.site.is_this_machine:
            error.hint = f"{error.hint or ''}\non a cluster: serried submit --cluster {' or '.join(known)}".strip()
        raise


def check_here(resolved: config.Resolved, environ: Mapping[str, str], data: tuple[str, ...] = ()) -> None:
    """Raise Elsewhere if the cluster's own login node must submit, with this `data` of the project."""
    if resolved.is_elsewhere:
        name = resolved.cluster.name
        check_data(Path(resolved.project.directory), data)
        raise Elsewhere(
            name,
            f"`{name}` is another cluster than this machine's",
            needs_project=True,
            names_cluster=True,
            variables=_secrets(resolved, environ),
            data=data,
        )


def _secrets(resolved: config.Resolved, environ: Mapping[str, str]) -> dict[str, str]:
    """The secrets that the settings name, with their values on this machine."""
    its, webhook = resolved.experiment.environment.planned, resolved.experiment.notify.webhook
    found = {secret: environ[secret] for secret in (*its.secrets, webhook or "") if secret in environ}
    if its.env_file_path:  # only its values are sent
        found |= {**shell_words.read_env_file(Path(its.env_file_path)), names.SENT_SECRETS: ",".join(its.env_file)}
    return found


def secrets_in(directory: Path, cluster: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The secrets of all experiments of a project, to rerun an old run. Raises UsageError."""
    found = []
    for name in config.catalogue(directory, environ).experiments or (None,):
        with contextlib.suppress(UsageError):  # an old run has its own settings
            command = None if name else ()
            found.append(_secrets(config.resolve(name, command, {}, cluster, directory, environ), environ))
    return _merged(found)


def _merged(secrets: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """All secrets in one. Raises UsageError if two values of a secret differ."""
    merged: dict[str, str] = {}
    for name, value in ((name, value) for each in secrets for name, value in each.items()):
        if name == names.SENT_SECRETS and merged.get(name):
            merged[name] += f",{value}"
        elif merged.setdefault(name, value) != value:
            message = f"the secret `{name}` has another value in the `env_file` of each experiment"
            raise UsageError(message, hint="submit the experiments one by one")
    return merged


def _resolve(
    request: Request, command: Sequence[str] | None, directory: Path, environ: Mapping[str, str]
) -> config.Resolved:
    resolved = config.resolve(
        request.experiment,
        command,
        request.overrides,
        request.cluster,
        directory,
        environ,
        is_script=request.is_script,
        script_text=request.script_text,
    )
    if request.is_sent:
        check_here(resolved, environ, resolved.experiment.data.send)
    return resolved


def _sized_by_tasks(request: Request, resources: config.Resources) -> Request:
    """With ranks per node from all tasks, and CPUs per GPU from CPUs per rank. Raises UsageError for a remainder."""
    for flag, key, value in (("-n", "ranks", request.tasks), ("-c", "cpus", request.cpus_per_rank)):
        if value is not None and f"resources.{key}" in request.overrides:
            raise UsageError(f"`{flag}` and `--{key}` both set the number of {key}", hint="keep one of them")
    nodes, ranks, tasks = resources.nodes or 1, resources.ranks, request.tasks
    if tasks is not None:
        if tasks % nodes:
            below = f"`-n {tasks - tasks % nodes}` or " if tasks > nodes else ""
            spread = f"{below}`-n {tasks - tasks % nodes + nodes}`"
            hint = f"`-n` counts the ranks of all nodes: {spread}, or fewer nodes"
            raise UsageError(f"{counted(tasks, 'rank')} cannot be shared evenly by {nodes} nodes", hint=hint)
        ranks = tasks // nodes
        request = request.with_setting("resources.ranks", value=ranks)
    if cpus := request.cpus_per_rank:
        gpus = resources.gpus or ranks or 1
        if cpus * (ranks or gpus) % gpus:
            hint = "`--cpus N` counts CPUs per GPU"
            raise UsageError(
                f"`-c {cpus}` for {counted(ranks or 1, 'rank')} cannot be shared evenly by {gpus} GPUs", hint=hint
            )
        request = request.with_setting("resources.cpus", value=cpus * (ranks or gpus) // gpus)
    return request


def _notes(request: Request, plan: Plan, resolved: config.Resolved, each: Sequence[Sequence[str]]) -> Iterator[str]:
    array, resources = plan.array, resolved.experiment.resources
    yield gpu_note(resources, plan.allocation, resolved.cluster) if not plan.script else ""
    count = len(array.indices) if array else 1
    yield partition_note(plan.allocation, resolved.cluster, count, array.parallel if array else None)
    ranks, gpus = (resolved.origins.get(f"resources.{key}") for key in ("ranks", "gpus"))
    is_of_file = ranks and gpus and ranks.path and not (gpus.path or gpus.is_default)
    if is_of_file and resources.ranks == 1 < plan.allocation.gpus:
        yield f"`ranks = 1` in {ranks} gives one rank all {plan.allocation.gpus} GPUs of a node: `--ranks N` has more"
    plain = layout.plain(request.name or "", layout.LONGEST_NAME)
    if request.name and not plan.script and plain != request.name:
        yield f"the scheduler's name of the job begins with `{plain or 'serried'}`: other characters are left out there"
    # Repeats whose command contains no number of theirs may all give the same result.
    text = "\0".join(itertools.chain(plan.command, *each))
    has_number = names.TASK in text or any(f"{{{name}}}" in text for name in ("seed", "repeat", "task"))
    if array and (array.repeat or 1) > 1 and not has_number:
        yield f"`{{seed}}` and `{{repeat}}` are not in the command: repeats differ only if it reads {names.TASK}"


def decide_all(
    request: Request, experiments: Sequence[str], directory: Path, environ: Mapping[str, str]
) -> list[Decided]:
    """Plans of several experiments, in an order in which they can be submitted. Writes nothing.

    `request.after` applies to those that depend on none of the others. Raises UsageError.
    """
    twice = next((name for name in experiments if experiments.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"`{twice}` is named twice", hint="submit it again separately")
    each: dict[str, Decided] = {}
    elsewhere: list[Elsewhere] = []
    for name in experiments:
        try:
            each[name] = decide(request._replace(experiment=name), directory, environ, among=experiments)
        except Elsewhere as error:
            elsewhere.append(error)
    if elsewhere:
        raise _together(elsewhere, [decided.plan.site.name for decided in each.values()])
    ordered = order({name: tuple(decided.together) for name, decided in each.items()})
    return [_after_others(each[name], each) for name in ordered]


def _together(elsewhere: Sequence[Elsewhere], here: Sequence[str]) -> Elsewhere:
    """One Elsewhere for all experiments, with their secrets and data. Raises UsageError for several clusters."""
    first = elsewhere[0]
    if others := {*here, *(each.cluster for each in elsewhere)} - {first.cluster}:
        hint = "submit the experiments of each cluster in a command of their own, or pass --cluster NAME"
        raise UsageError(f"the experiments are for `{first.cluster}` and `{min(others)}`", hint=hint)
    first.variables = _merged(each.variables for each in elsewhere)
    if first.data is not None:
        first.data = tuple(dict.fromkeys(path for each in elsewhere for path in each.data or ()))
    return first


def _after_others(decided: Decided, each: Mapping[str, Decided]) -> Decided:
    """With the dependencies that are submitted with it, in the file's order: `{after}` is the first of all."""
    if not decided.together:
        return decided
    from serried.submission.again import check_pair, parse_dependency

    existing = iter(decided.plan.after)
    afters = []
    for name in dict.fromkeys(parse_dependency(text)[0] for text in decided.resolved.experiment.after):
        if name in decided.together:
            other = each[name].plan
            check_pair(other, decided.plan)
            # Its job is known once it is submitted.
            afters.append(After(other.run, other.name, other.directory, decided.together[name], None, ""))
        else:
            afters += itertools.islice(existing, 1)
    return decided._replace(plan=decided.plan._replace(after=tuple(afters)))


def order(after: Mapping[str, Sequence[str]]) -> list[str]:
    """The names, each behind its dependencies. Raises UsageError for a cycle."""
    import graphlib

    sorter = graphlib.TopologicalSorter(dict.fromkeys(after, ()))  # keeps their order where it can
    for name, before in after.items():
        sorter.add(name, *before)
    try:
        return [*sorter.static_order()]
    except graphlib.CycleError as error:
        message = f"experiments depend on each other in a cycle: {' → '.join(f'`{name}`' for name in error.args[1])}"
        raise UsageError(message, hint="remove one of these names from `after` in the file") from None


def decide_inside(request: Request, inside: Inside, directory: Path, environ: Mapping[str, str]) -> Decided:
    """The plan for the job around us: its nodes, GPUs and time. The command line may request less.

    Raises UsageError if it requests more.
    """
    available = {"nodes": len(inside.hosts), "spare_nodes": 0, "gpus": inside.gpus}
    if inside.seconds is not None:
        available["time"] = inside.seconds
    for name, amount in available.items():
        if f"resources.{name}" not in request.overrides:
            request = request.with_setting(f"resources.{name}", value=f"{amount}s" if name == "time" else amount)
    if request.cluster is None and "SERRIED_CLUSTER" not in environ and schedulers.here(environ) != inside.scheduler:
        # Compute nodes may lack the scheduler's commands. `serried shell` sets the cluster.
        request = request._replace(cluster=inside.scheduler)
    decided = decide(request, directory, environ)
    plan = decided.plan
    own = schedulers.traits(schedulers.LOCAL).dialect
    dialect = schedulers.traits(inside.scheduler).dialect._replace(
        task=own.task, awaited=own.awaited, state_query=own.state_query
    )
    site = plan.site._replace(
        scheduler=schedulers.LOCAL, inside=inside.scheduler, is_this_machine=False, dialect=dialect
    )
    asked = plan.allocation
    for what, wanted, there in (
        ("nodes", asked.nodes, len(inside.hosts)),
        ("spare nodes", asked.spare_nodes, 0),
        ("GPUs per node", asked.gpus, inside.gpus),
    ):
        if wanted > there:
            hint = "leave the option out: `serried run` uses the whole job"
            raise UsageError(f"{wanted} {what} were requested, but job {inside.job} has {there}", hint=hint)
    ranks_are_set = "resources.ranks" not in plan.defaults or asked.gpus
    allocation = Allocation(
        nodes=asked.nodes,
        ranks=asked.ranks if ranks_are_set else inside.tasks,
        gpus=asked.gpus,
        cpus=inside.cpus,
        memory_mb=None,
        time_seconds=asked.time_seconds,
    )
    return decided._replace(plan=plan._replace(site=site, allocation=allocation))


def _behind(decided: Decided, request: Request, among: Sequence[str]) -> Decided:
    """With its dependencies: experiments of the file that are submitted with it, and existing runs."""
    if not (decided.resolved.experiment.after or request.after):
        return decided
    from serried.submission.again import newest_of, parse_dependency, run_after

    resolved = decided.resolved
    in_file = {parse_dependency(text)[0]: text for text in resolved.experiment.after}
    for name in in_file:
        if name not in resolved.experiments:
            known = ", ".join(f"`{experiment}`" for experiment in resolved.experiments)
            hint = did_you_mean(name, resolved.experiments) or f"there are {known}"
            raise UsageError(f"`{resolved.experiment.name}` depends on `{name}`, which is not an experiment", hint=hint)
    together = {name: parse_dependency(text)[1] for name, text in in_file.items() if name in among}
    if request.after is not None:
        # Dependencies on the command line are for experiments that depend on none of the others.
        followed = [run_after(text, decided.plan) for text in request.after if not together]
    else:
        rest = [text for name, text in in_file.items() if name not in among]
        followed = [newest_of(text, decided.plan) for text in rest]
    warnings = (*resolved.warnings, *(note for each in followed for note in each.notes))
    return decided._replace(
        plan=decided.plan._replace(after=tuple(each.after for each in followed)),
        resolved=resolved._replace(warnings=warnings),
        jobs=tuple(dict.fromkeys(job for each in followed for job in each.jobs)),
        together=together,
    )


def _array(
    request: Request, configured: str | None, each: tuple[tuple[str, ...], ...]
) -> tuple[Array | None, tuple[tuple[str, ...], ...]]:
    """The requested array, or else the experiment's, and the commands of its tasks in their order."""
    for flag, number in (("--parallel", request.parallel), ("--repeat", request.repeat)):
        if number is not None and number < 1:
            raise UsageError(f"`{flag}` must be 1 or more")
    if request.repeat is not None:
        return _repeated(request, request.repeat, each)
    text = request.array if request.array is not None else None if each else configured
    try:
        text = None if text is None else values.array_text(text)
        indices, parallel = values.array_range(text) if text else (tuple(range(len(each))), None)
    except values.BadValue as error:
        raise UsageError(f"`--array` {error}", hint=error.hint) from None
    if not indices:
        if request.parallel is not None:
            raise UsageError("`--parallel` needs an array", hint="`--array 0-9`, `--repeat 10`, or `--commands FILE`")
        return None, ()
    if each and indices[-1] >= len(each):
        message = f"`--array` has task {indices[-1]}, but `{request.each}` has {len(each)} commands, counted from 0"
        raise UsageError(message, hint="leave out `--array` to run them all")
    array = Array(indices, request.parallel or parallel, bool(each))
    return array, tuple(each[index] for index in indices) if each else ()


def _trials(request: Request) -> tuple[Trial, ...]:
    """The parameters of all tasks of a sweep. Raises UsageError for options that number the tasks in another way."""
    if request.sweep is None:
        return ()
    request.sweep.check()
    for flag, value in (("--array", request.array), ("--commands", request.each), ("--repeat", request.repeat)):
        if value is not None:
            hint = "`--seeds N` repeats each trial with N seeds" if flag == "--repeat" else None
            raise UsageError(f"`{flag}` does not apply to a sweep, whose tasks are its trials", hint=hint)
    if request.parallel is not None and request.parallel < 1:
        raise UsageError("`--parallel` must be 1 or more")
    if request.parallel is not None and request.sweep.workers:
        raise UsageError("`--workers` and `--parallel` exclude each other", hint="keep one of them")
    return tuple(request.sweep.trials())


AGENT = "serried.train.tracking.wandb_agent"


def _with_agent(request: Request, sweep: str) -> Request:
    """The agent of W&B is the command, once per task: it starts the command that the sweep has at the service."""
    if request.command is not None or request.is_script:
        hint = "leave the command out, or change `command` in the definition at W&B"
        raise UsageError(f"the agent of W&B starts the command of `{sweep}`", hint=hint)
    name = request.name or (None if request.experiment else sweep.split("/")[1])
    with_agent = request._replace(command=("python", "-m", AGENT, sweep), name=name)
    return with_agent.with_setting("launch.kind", value="single")


def _with_sweep(plan: Plan, definition: SweepDefinition) -> Plan:
    """The plan with its sweep, and with the parameters behind its command if the command has no place for them.

    Raises UsageError if its jobs draw trials, and cannot.
    """
    from serried.sweeps.definition import BAYES, MINIMIZE, SEED

    if plan.draws and plan.script:
        raise UsageError("`--workers` does not apply to a job script", hint="`--parallel N` limits its jobs")
    if plan.draws and plan.has_links:
        hint = "`--set limit.restarts=0`; `serried sweep retry` continues trials that the time limit has cut"
        raise UsageError("with `--workers`, a trial cannot continue in a job of its own", hint=hint)
    _check_overrides(plan.command, {name: parameter.values for name, parameter in definition.parameters.items()})
    parameters = (*definition.parameters, *((SEED,) if definition.seeds else ()))
    metric, search, is_bayes = definition.metric, None, definition.method == BAYES
    if metric is not None and (is_bayes or definition.pruner):
        space = definition.space if is_bayes else {}
        search = Search(definition.method, metric.name, metric.source, metric.goal, definition.pruner, space)
    sweep = Sweep(
        first=plan.run,
        parameters=parameters,
        metric=metric.name if metric else "",
        goal=metric.goal if metric else MINIMIZE,
        source=metric.source if metric else "",
        seeds=definition.seeds or 1,
        definition=definition.to_json(),
        description=str(definition),
        search=search,
        service=definition.id,
    )
    experiment = definition.id.split("/")[1] if plan.experiment == AGENT else plan.experiment
    return plan._replace(sweep=sweep, command=_with_place(plan, parameters), experiment=experiment)


def _with_place(plan: Plan, parameters: Sequence[str]) -> tuple[str, ...]:
    """The command with `{args}` at its end, if no other words of it take the parameters."""
    command = plan.command
    if command_lines.takes_arguments(command) or len(command_lines.placed(command, parameters)) == len(parameters):
        return command
    return (f"{command[0]} {{args}}",) if plan.shell else (*command, "{args}")


def _with_parameters(plan: Plan, parameters: Mapping[str, Any]) -> Plan:
    """With the parameters of one trial in the command. Raises UsageError if it reads them from a file."""
    if not parameters:
        return plan
    own = {name: plan.config.get(name, value) for name, value in parameters.items()}  # `--set` wins
    command = _with_place(plan, list(own))
    if any("{args_json_file}" in word for word in command):
        raise UsageError("`{args_json_file}` needs a sweep", hint="`{args_json}` is the same text as an argument")
    _check_overrides(command, own)
    words = command_lines.with_arguments(command, own, "", is_shell=plan.shell, is_template=not plan.script)
    return plan._replace(command=tuple(words))


def _check_overrides(command: Sequence[str], parameters: Mapping[str, Any]) -> None:
    """Raises UsageError if the command has `{args_hydra}`, and Hydra would misread the keys of a table."""
    if not any("{args_hydra}" in word for word in command):
        return
    own = command_lines.placed(command, list(parameters))
    for name, value in parameters.items():
        try:
            _ = name in own or command_lines.override_value(value)
        except command_lines.BadKey as error:
            message = f"the key `{error.key}` of `{name}` cannot be in an override of Hydra"
            raise UsageError(message, hint="`{args_json_file}` passes any parameters") from None


def _repeated(
    request: Request, repeat: int, each: tuple[tuple[str, ...], ...]
) -> tuple[Array, tuple[tuple[str, ...], ...]]:
    """The same with repeats: the repeats of a command are consecutive tasks."""
    if request.array is not None:
        hint = "`--array 0-4` alone runs the command five times, with five seeds"
        raise UsageError("`--repeat` numbers the tasks itself, so `--array` cannot be given with it", hint=hint)
    count = repeat * max(len(each), 1)
    if count > values.MOST_TASKS:
        raise UsageError(f"`--repeat {repeat}` has over {values.MOST_TASKS:,} tasks", hint="submit several runs")
    commands = tuple(command for command in each for _ in range(repeat))
    return Array(tuple(range(count)), request.parallel, bool(each), repeat), commands
