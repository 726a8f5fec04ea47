"""A plan in a few lines: what `submit` shows before it hands it over."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from serried import schedulers
from serried.base.text import compress, counted, duration, show_duration, spell
from serried.schema import command_lines, names
from serried.schema.checkpoints import IN_CHECKPOINTS
from serried.schema.command_lines import spelled
from serried.schema.plan import Array, Container, Data, Environment, Plan, Staged, Sync
from serried.views.text import memory

if TYPE_CHECKING:
    from serried.submission.snapshot import Revision, Survey

FILES_OF_A_RUN, FILES_OF_A_TASK, FILES_OF_AN_ATTEMPT = 5, 2, 5
"""`run-directory.md` and `internals.md` in docs name them; then a node's events and samples, logs of ranks."""
FOLDERS_OF_A_RUN, FOLDERS_OF_A_TASK = 2, 3
_LISTED = 4


def plan_lines(
    plan: Plan, survey: Survey | None, revision: Revision, trial: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """Labels and texts. A `*` follows a default. Without a survey of a snapshot, its files are not counted.

    `trial` has the parameters of a sweep's first trial, for an example of its command.
    """
    data = plan.data or Data()
    kept = f"copied back every {show_duration(data.results_every_seconds)} and at the end"
    kept = kept if plan.site.local_disk else f"written to the run directory{_unless(plan)}"
    lines = [
        ("smoke", smoke_text(plan) if plan.smoke else ""),
        ("command", command_text(plan, trial)),
        ("directives", directives_text(plan)),
        ("beside", beside_text(plan)),
        ("array", "" if plan.sweep else _array(plan)),
        ("sweep", _sweep(plan)),
        ("resumes", str(plan.resume or "")),
        ("after", comes_after(plan)),
        ("config", settings_text(plan.config)),
        ("track", track_text(plan)),
        ("cluster", _cluster(plan)),
        ("each node", _node(plan)),
        ("ranks", "" if plan.script else _ranks(plan)),
        ("tasks", _tasks(plan) if plan.script else ""),
        ("time" if plan.allocation.time_seconds is None else "cost", _cost(plan)),
        ("spare nodes", _spares(plan)),
        ("creates", _files(plan, survey)),
        ("code", _code(plan, survey, revision)),
        ("python", environment_text(plan.environment)),
        ("container", container_text(plan.container)),
        ("data", _staged(plan, data.stage)),
        ("requires", _listed(data.require)),
        ("results", f"{_listed(data.results)}: {kept}" if data.results else ""),
        ("checkpoints", _watched(plan, plan.checkpoint) if plan.checkpoint else ""),
        ("preflight", _preflight(plan) if plan.preflight else ""),
        ("restarts", restarts_text(plan)),
        ("rounds", f"up to {plan.limit.rounds} without progress, within an attempt" if plan.limit.rounds else ""),
        ("symlinks", ", ".join(plan.source.links)),
        ("secrets", ", ".join((*plan.environment.secrets, *plan.environment.env_file))),
        ("", "* a default" if plan.defaults else ""),
    ]
    return [(label, text) for label, text in lines if text]


def command_text(plan: Plan, trial: Mapping[str, Any] | None = None) -> str:
    """The command as the user would type it; of an array the first task's, of a sweep an example."""
    words, is_example = plan.command, False
    if plan.sweep and not plan.sweep.service:
        own = {name: (trial or {}).get(name, "…") for name in plan.sweep.parameters}
        placed = command_lines.placed(words, plan.sweep.parameters)
        is_example = command_lines.takes_arguments(words) or any(trial or name not in plan.config for name in placed)
        values = {f"config.{name}": spelled(own[name] if trial else plan.config.get(name, "…")) for name in placed}
        words = tuple(
            command_lines.fill(word, values)
            for word in command_lines.with_arguments(
                words, own, "parameters.json", is_shell=plan.shell, is_template=not plan.script
            )
        )
    text = words[0] if plan.shell and words else " ".join(map(_quoted, words)) if is_example else shlex.join(words)
    return f"e.g. {text}" if is_example else text


def _quoted(word: str) -> str:
    """`--lr=…` stands for a value that is not drawn yet, and needs no quotes."""
    return word if word.endswith("…") and word[:-1] == shlex.quote(word[:-1]) else shlex.quote(word)


def directives_text(plan: Plan) -> str:
    """The options of a job script's directives that its scheduler gets, and those that settings replace."""
    if plan.script is None:
        return ""
    parts = [shlex.join(plan.script.options)] if plan.script.options else []
    parts += [f"without {shlex.join(plan.script.replaced)}"] if plan.script.replaced else []
    return ", ".join(parts)


def beside_text(plan: Plan) -> str:
    """The commands beside the ranks, each with its number if there are several."""
    where = {names.EVERY_NODE: "", names.FIRST_NODE: " (on the first node)"}
    texts = [side.command[0] if side.shell else shlex.join(side.command) for side in plan.beside]
    shown = [" ".join(text.split()) + where[side.on] for text, side in zip(texts, plan.beside)]
    return "; ".join(f"{index}: {text}" for index, text in enumerate(shown)) if len(shown) > 1 else "".join(shown)


def environment_text(environment: Environment) -> str:
    """What the ranks find, where it is not what is active here."""
    prefix = environment.venv or environment.conda
    parts = [prefix] if prefix else []
    parts += [f"modules {' '.join(environment.modules)}"] if environment.modules else []
    parts += ["after the lines of `setup`"] if environment.setup else []
    return ", ".join(parts)


def container_text(container: Container | None) -> str:
    if container is None:
        return ""
    made = f", built from {container.made_from}" if container.made_from else ""
    contained = ", contained" if container.contained else ""
    contained += ", writable" if container.writable else ""
    contained += f" with {shlex.join(container.options)}" if container.options else ""
    copied = ", copied to each node's disk" if container.local else ""
    return f"{container.image}{made}, by {container.runtime}{contained}{copied}"


def track_text(plan: Plan) -> str:
    """`tensorboard, wandb offline, project `digits`, each rank`."""
    track = plan.track
    if track is None:
        return ""
    mode = "" if track.mode == names.TRACK_AUTO else f" {track.mode}"
    ranks = ", each rank" if track.every_process else ""
    return f"{' and '.join(track.sinks)}{mode}, project `{track.project}`{ranks}"


def settings_text(config: Mapping[str, Any]) -> str:
    """`lr=0.1, model.width=64`."""
    return ", ".join(f"{name}={spelled(value)}" for name, value in config.items())


def smoke_text(plan: Plan) -> str:
    return (
        f"a smoke test: `serried.train` stops after {plan.smoke} steps; other programs must read "
        f"SERRIED_SMOKE={plan.smoke} themselves"
    )


CONDITIONS = {
    names.AFTER_OK: "after it has completed",
    names.AFTER_ANY: "after it has ended",
    names.AFTER_NOTOK: "if it does not complete",
}


def comes_after(plan: Plan) -> str:
    """`prepare (k3f9q2), once it has completed`; empty where it comes after nothing."""
    past = "without waiting for it" if plan.rerun_of else "which has ended"
    texts = []
    for after in plan.after:
        task = "" if after.task is None else f"/{after.task}"
        when = past if after.job is None else CONDITIONS[after.condition]
        texts.append(f"{after.name} ({after.run}{task}), {when}")
    return "; ".join(texts)


FORMS = {
    names.REQUEUE: "the job requeues itself",
    names.SUCCESSOR: "each job submits the next one when it starts",
    names.PREQUEUED: "all jobs are queued now",
}


def restarts_text(plan: Plan) -> str:
    """How many further attempts there may be, and how each comes about; empty for none."""
    if not plan.limit.restarts:
        return ""
    total, link = plan.limit.total_time_seconds, plan.allocation.time_seconds
    if total is None or link is None:
        return f"up to {plan.limit.restarts}: {FORMS[plan.limit.continue_by]}"
    links = -(-total // link)
    spare = plan.limit.restarts + 1 - links
    more = f", and {spare} spare" if spare else ""
    jobs = f"{counted(links, 'job')} of {duration(link)}"
    return f"{jobs} for {duration(total)} in total{more}: {FORMS[plan.limit.continue_by]}"


def _preflight(plan: Plan) -> str:
    what = "the script waits for the checks of its nodes" if plan.script else "ranks wait for the checks of their nodes"
    again = "; a run with a bad node is submitted once more without it" if plan.limit.resubmit else ""
    return f"{what}, at most {names.PREFLIGHT_SECONDS} s{again}"


def _cluster(plan: Plan) -> str:
    asked = {name: getattr(plan.allocation, name) for name in ("partition", "account", "qos", "reservation")}
    kind = "" if plan.site.name == plan.site.scheduler else f" ({plan.site.scheduler})"
    return ", ".join([plan.site.name + kind, *(f"{name} {value}" for name, value in asked.items() if value)])


def _node(plan: Plan) -> str:
    allocation = plan.allocation

    def star(key: str) -> str:
        return "*" if f"resources.{key}" in plan.defaults else ""

    gpus = counted(allocation.gpus, f"{allocation.gpu_type} GPU" if allocation.gpu_type else "GPU") + star("gpus")
    given = allocation.memory_mb
    amount = "the cluster's default memory" if given is None else memory(given)
    whole = "exclusive, " if allocation.exclusive else ""
    cpus = "all CPUs" if plan.has_all_cpus else counted(allocation.cpus, "CPU") + star("cpus")
    return f"{whole}{gpus}, {cpus}, {amount}{star('mem')}"


def _ranks(plan: Plan) -> str:
    nodes, spares = counted(plan.allocation.nodes, "node"), plan.allocation.spare_nodes
    star = "*" if "resources.nodes" in plan.defaults else ""
    star += f" + {spares} spare" if spares else ""
    ranks, gpus = plan.allocation.ranks, plan.allocation.gpus
    share = f", {gpus // ranks} GPUs for each" if gpus > ranks else ""
    share = f", {ranks // gpus} to a GPU" if 0 < gpus < ranks else share
    share += f", by {plan.launch.kind}" if plan.launch.kind not in ("agent", "single") else ""
    if plan.allocation.nodes == 1:
        return f"{counted(plan.allocation.ranks, 'rank')} on {nodes}{star}{share}"
    return f"{nodes}{star}, {counted(plan.allocation.ranks, 'rank')} on each: {plan.world_size} in all{share}"


def _tasks(plan: Plan) -> str:
    """The size that the scheduler gives a script, which starts its ranks itself."""
    allocation = plan.allocation
    star = "*" if "resources.nodes" in plan.defaults else ""
    each = counted(allocation.ranks, "task")
    if allocation.nodes == 1:
        return f"{each} on 1 node{star}"
    return f"{counted(allocation.nodes, 'node')}{star}, {each} on each"


def _cost(plan: Plan) -> str:
    """GPU-hours (CPU-hours without GPUs), and the time that there is before the warning."""
    allocation = plan.allocation
    tasks = len(plan.array.indices) if plan.array else 1
    limit, useful = allocation.time_seconds, plan.useful_seconds
    if limit is None or useful is None:
        return "no limit"
    star = "*" if "resources.time" in plan.defaults else ""
    on_each, what = _priced(plan)
    hours = tasks * allocation.job_nodes * on_each * limit / 3600
    unit = f"{what}-hour{'' if _figure(hours) == '1' else 's'}"
    each = f" in each of up to {plan.limit.restarts + 1} attempts" if plan.limit.restarts else ""
    return f"at most {duration(limit)}{star} (stop notice after {duration(useful)}), {_figure(hours)} {unit}{each}"


def _priced(plan: Plan) -> tuple[int, str]:
    """What an hour of a node costs: a number of GPUs, else of CPUs, else a node."""
    if plan.has_all_cpus and not plan.allocation.gpus:
        return 1, "node"
    return (plan.allocation.gpus, "GPU") if plan.allocation.gpus else (plan.allocation.cpus, "CPU")


def _spares(plan: Plan) -> str:
    """The share of the cost that waits for the loss of a node."""
    spares, every = plan.allocation.spare_nodes, plan.allocation.job_nodes
    return f"{spares} of {every} nodes: {spares / every:.0%} of the {_priced(plan)[1]}-hours" if spares else ""


def _files(plan: Plan, survey: Survey | None) -> str:
    """The entries that count against a file quota: Serried's own in the run directory, and the copies of the code."""
    tasks = len(plan.array.indices) if plan.array else 1
    run = FILES_OF_A_RUN + FOLDERS_OF_A_RUN + bool(plan.environment.setup) + bool(plan.array and plan.array.each)
    run += bool(plan.sweep)
    run += tasks + 1 + len(plan.array.offsets) if plan.array else 0  # in parts: a claim for each, and one more log
    run += 2 if plan.has_links else bool(plan.after)
    task = FILES_OF_A_TASK + FOLDERS_OF_A_TASK
    attempt = _files_of_an_attempt(plan)
    code = 0
    if survey is not None:
        entries = [PurePosixPath(name) for name in (*survey.files, *survey.links)]
        folders = {PurePosixPath(), *(parent for entry in entries for parent in entry.parents)}
        code = (len(entries) + len(folders)) * (tasks if plan.source.tree_per_task else 1)
    total = run + tasks * (task + attempt) + code
    beside = " in addition to the code" if survey is None and plan.source.snapshot else ""
    links = " and 2 for its job" if plan.has_links else ""
    further = f", {tasks * attempt:,} more for each restart{links}" if plan.limit.restarts else ""
    return f"{total:,} files and folders{beside}{further}"


def _files_of_an_attempt(plan: Plan) -> int:
    nodes, every = plan.allocation.nodes, plan.allocation.job_nodes
    logs = {"agent": 0, "single": 0, "srun": 1, "script": 1}.get(plan.launch.kind, nodes)
    logs += sum(1 if side.on == names.FIRST_NODE else nodes for side in plan.beside)
    ranks = 0 if plan.script else plan.allocation.ranks
    if plan.shares_logs:
        ranks, logs = 1, logs + 1
    samples = plan.sampling.every_seconds is not None
    return 1 + FILES_OF_AN_ATTEMPT + every * (2 + samples) + nodes * ranks + logs


def _figure(number: float) -> str:
    """Three digits that count: `0.133`, `8`, `4,800`."""
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def _code(plan: Plan, survey: Survey | None, revision: Revision) -> str:
    if plan.source.archive is not None and plan.rerun_of:
        return f"the code of run {plan.rerun_of}"
    if survey is None:
        what = f"{'a snapshot of' if plan.source.snapshot else 'in place,'} {plan.source.directory}"
    else:
        what = f"a snapshot of {counted(len(survey.files), 'file')}, {spell(survey.bytes)}"
        what += ", a copy for each task" if plan.source.tree_per_task else ""
    if revision.commit is None:
        return what
    branch = f" on {revision.branch}" if revision.branch else ""
    changes = ", with uncommitted changes" if revision.is_dirty or (survey and survey.untracked) else ""
    return f"{what}; commit {revision.commit[:10]}{branch}{changes}"


def _sweep(plan: Plan) -> str:
    if plan.sweep is None or plan.array is None:
        return ""
    sweep, search = plan.sweep, plan.sweep.search
    bayes = "Bayesian search over " if search and search.method == "bayes" else ""
    better = f"; {sweep.goal} {sweep.metric}" if sweep.metric else ""
    early = f"; bad trials end early ({search.pruner['type']})" if search and search.pruner else ""
    trials = f"{counted(len(plan.array.indices), 'trial')}{_in_turn(plan, plan.array)}"
    return f"{trials}: {bayes}{sweep.description}{better}{early}"


def _array(plan: Plan) -> str:
    if plan.array is None:
        return ""
    indices = plan.array.indices
    each = ", one per line, counted from 0; shown is the first command" if plan.array.each else ""
    if plan.array.repeat and each:
        each = f", {counted(plan.array.repeat, 'repeat')} of each line in turn; shown is the first command"
    elif plan.array.repeat:
        each = ", repeats of one command"
    return f"{counted(len(indices), 'task')} ({compress(indices)}){_in_turn(plan, plan.array)}{each}"


def _in_turn(plan: Plan, array: Array) -> str:
    parts = f", in {len(array.offsets)} jobs" if plan.is_in_parts else ""
    if array.draws:
        return f"{parts}, by {counted(min(array.parallel or 1, len(array.indices)), 'worker')}"
    return parts + (f", {array.parallel} at a time" if array.parallel else "")


def _watched(plan: Plan, sync: Sync) -> str:
    """Without a disk on nodes, files in `{checkpoints}` are in the run directory at once, and all are kept."""
    there = [] if plan.site.local_disk else [one for one in sync.watch if one.startswith(IN_CHECKPOINTS)]
    brought = [one for one in sync.watch if one not in there]
    texts = []
    if brought:
        every = show_duration(sync.sync_every_seconds)
        texts.append(f"{_listed(brought)}: copied every {every}, keeping the last {sync.keep}")
    if there:
        texts.append(f"{_listed(there)}: written to the run directory, which keeps all{_unless(plan)}")
    return "; ".join(texts)


def _staged(plan: Plan, stage: Sequence[Staged]) -> str:
    if not stage:
        return ""
    size = amount(stage)
    listed = _listed([f"{item.to} (unpacked)" if item.unpack else item.to for item in stage])
    if plan.site.local_disk:
        where = f"{size} to each node's disk" if size else "to each node's disk"
    else:
        where = f"{size}, read in place{_unless(plan)}" if size else f"read in place{_unless(plan)}"
    return f"{listed}: {where}"


def _unless(plan: Plan) -> str:
    return ", unless nodes set SLURM_TMPDIR" if schedulers.traits(plan.site.scheduler).has_node_disk else ""


def amount(stage: Sequence[Staged]) -> str:
    """`12.4 GB in 1,281,167 files`, as far as it was counted."""
    known = [(item.bytes, item.files or 0) for item in stage if item.bytes is not None]
    if not known:
        return ""
    size, files = sum(size for size, _ in known), sum(files for _, files in known)
    more = "more than " if len(known) < len(stage) else ""
    return f"{more}{spell(size)} in {counted(files, 'file')}"


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
    return ", ".join(paths[:_LISTED]) + more
