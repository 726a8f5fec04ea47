"""Directives, environment and launches of a script -> experiments."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from serried.errors import UsageError
from serried.importing import body, commands, conditionals, counts, script, tables, to_toml
from serried.importing.assign import without_parts_of_commands
from serried.importing.body import Body, PlacedLaunch
from serried.importing.counts import Counted, Started
from serried.importing.environment import ScriptEnvironment, leads_out, within
from serried.importing.expand import Variables, as_shell, literal, outside, static
from serried.importing.report import LEFT, NEEDLESS, TAKEN, Header, Imported, ImportedExperiment, Line, is_secret, line

_STRONG = re.compile(r"(?:python|pypy)[\d.]*|Rscript|julia|wandb")
_OUTSIDE = re.compile(r"(?:^|=)((?:[^=]*/)?\.\.(?:/[^=]*)?)$")
_GOES_UP = re.compile(r"^\s*cd\s+[\"']?\.\.(?![^/\s\"';&|])", re.MULTILINE)


def read(content: bytes, file: str, name: str | None = None, folder: str = "") -> Imported:
    """What the script `file` with this content says. Experiments are called by `name`, else by the job's or the file's.

    `folder` is where the script lies, from where the import is run. A script that reaches out of the folder where it is
    submitted, `python ../main.py`, was submitted from there.

    Raises UsageError for what is no job script, or starts nothing.
    """
    text = script.text(content, file)
    imported, reaches_out = _read(text, file, name, "")
    if not folder or not reaches_out:
        return imported
    imported, _ = _read(text, file, name, folder)
    why = f"paths in it begin with `..`, so ranks start in `{folder}`, where the script is: see `workdir`"
    return dataclasses.replace(imported, lines=(line(0, "", LEFT, why), *imported.lines))


def _read(text: str, file: str, name: str | None, workdir: str) -> tuple[Imported, bool]:
    """What it says where it was submitted from `workdir`, and whether it reaches out of that."""
    head = script.header(text)
    secrets = [variable for variable in head.env if is_secret(variable)]
    env = {variable: value for variable, value in head.env.items() if variable not in secrets}
    called = (name or head.name or "").strip() or PurePath(file).name.rpartition(".")[0] or "job"
    found = body.read(text, ScriptEnvironment(_variables(head, called), env=env, secrets=secrets, workdir=workdir))
    without_parts_of_commands(found.made)
    chosen = _chosen(found)
    if not chosen:
        raise UsageError(
            f"no line of `{file}` starts a program",
            hint="`serried init` writes a serried.toml for the script that is here",
        )
    lines = [*head.lines, *found.made.lines]
    experiments: list[ImportedExperiment] = []
    last = chosen[0][0]
    for each, group in zip(_names(called, len(chosen)), chosen, strict=True):
        settings = _settings(group, head, found)
        if experiments and not _are_together(last, group[0], found):
            settings["after"] = experiments[-1].name + ("" if found.made.stops else ":any")
        last = group[-1]
        experiments.append(ImportedExperiment(each, dict(_accepted(each, settings, lines))))
        lines += _launched(each, group, head, found)
    if len(chosen) > 1:
        is_beside = any(_are_together(before[-1], after[0], found) for before, after in itertools.pairwise(chosen))
        how = "side by side" if is_beside else "one after the other"
        why = f"one job ran them {how}: here each is a run of its own, with its own resources"
        lines.append(line(0, f"{len(chosen)} programs", LEFT, why))
    lines += _assignments(found.made, experiments)
    lines = [*_with_steps(lines, found.made), *_unsaid(head, experiments)]
    reaches_out = bool(_GOES_UP.search(text)) or any(_reaches_out(each) for group in chosen for each in group)
    lines.sort(key=lambda each: each.number)
    return Imported(tuple(experiments), tuple(lines), head.array, head.parallel), reaches_out


def _reaches_out(each: PlacedLaunch) -> bool:
    """Whether a word of the command is a path that leads out of the folder of serried.toml."""
    shown = (as_shell(word).strip("\"'") for word in each.launch.words)
    paths = (found[1] for word in shown if (found := _OUTSIDE.search(word)))
    return any(leads_out(within(each.workdir, path)) for path in paths if not path.startswith(("/", "~", "$", "{")))


def _variables(head: Header, name: str) -> Variables:
    """What is known before the first line: what the scheduler tells a job, in Serried's words."""
    asked = head.asked
    nodes, gpus, tasks = counts.nodes_of(asked), counts.gpus_of(asked), counts.tasks_of(asked)
    job = "{run}-{task}" if head.array else "{run}"
    told = {
        **dict.fromkeys(["SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID"], "{task}"),
        **dict.fromkeys(["SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID"], job),
        **dict.fromkeys(["SLURM_ARRAY_JOB_ID", "PBS_ARRAY_ID"], "{run}"),
        **dict.fromkeys(["SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "PWD"], "."),
        **dict.fromkeys(["SLURM_JOB_NAME", "PBS_JOBNAME"], name),
        **dict.fromkeys(["SLURM_NNODES", "SLURM_JOB_NUM_NODES", "PBS_NUM_NODES"], str(nodes)),
        **dict.fromkeys(["SLURM_NTASKS", "SLURM_NPROCS", "PBS_NP"], str(nodes * tasks)),
        **dict.fromkeys(["SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "PBS_NUM_PPN"], str(tasks)),
    }
    if gpus:
        told |= dict.fromkeys(["SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"], str(gpus))
        told["SLURM_GPUS"] = str(gpus * nodes)
    if asked.cpus_per_task:
        told["SLURM_CPUS_PER_TASK"] = str(asked.cpus_per_task)
    variables = Variables()
    for variable, value in told.items():
        variables.set(variable, [literal(value)])
    return variables


def _chosen(found: Body) -> list[list[PlacedLaunch]]:
    """The launches that become experiments; several plain programs in a row are one, as they are one process."""
    strong = [each for each in found.launches if each.launch.by or _STRONG.fullmatch(each.launch.name)]
    candidates = strong or found.launches
    chosen = [each for each in candidates if not each.statement.is_block] or candidates
    for each in found.launches:
        if each not in chosen:
            why = "it runs beside the training or before it: make it an experiment of its own, or do it by hand"
            found.made.say(each.command, LEFT, why)
    together = [each.launch.by or each.statement.is_block or each.statement.in_background for each in chosen]
    return [chosen] if len(chosen) > 1 and not any(together) else [[each] for each in chosen]


def _are_together(first: PlacedLaunch, second: PlacedLaunch, found: Body) -> bool:
    """Whether the second began while the first one ran."""
    lines = range(first.command.line, second.command.line)
    return first.statement.in_background and not any(line in lines for line in found.waits)


def _names(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]


def _settings(group: list[PlacedLaunch], head: Header, found: Body) -> dict[str, Any]:
    first, made = group[0], found.made
    ours = {*tables.SAID_BY_SERRIED, "CUDA_VISIBLE_DEVICES"}
    given = {name: outside(value) for name, value in first.launch.env.items() if name not in ours}
    env = {**made.env, **{name: text for name, value in given.items() if (text := static(value)) is not None}}
    secrets = list(dict.fromkeys([*made.secrets, *filter(is_secret, [*env, *given])]))
    worked_out = [f"export {name}={as_shell(given[name])}" for name in given if name not in env and name not in secrets]
    started = _started(first)
    counted = counts.count(head.asked, started)
    several = counted.nodes * counted.ranks > 1
    past = made.steps[: group[-1].steps]
    rest = {
        "environment.setup": "\n".join(
            [*made.setup, *conditionals.leading("\n".join(worked_out), made, past), *worked_out]
        ),
        "environment.env": {name: value for name, value in env.items() if name not in secrets},
        "environment.secrets": secrets,
    }
    settings = {
        **commands.command([commands.words_of(each.launch, several) for each in group], made, past),
        "workdir": first.workdir,
        **_resources(counted, head.settings),
        **first.launch.settings,
        "container.binds": [bind for bind in _binds(first) if not _is_unknown_here(bind)],
        "container.image": _image(str(first.launch.settings.get("container.image", "")), made),
        **_kind(first, started, counted),
        **made.settings,
        **rest,
        **{key: value for key, value in head.settings.items() if not key.startswith("resources.")},
    }
    return {key: value for key, value in settings.items() if value not in ("", [], {}, None)}


def _is_unknown_here(bind: str) -> bool:
    """Whether only the node knows it, and by a name that `container.binds` does not have."""
    return bool(re.search(tables.LOCAL_DISK, re.sub(r"\$(SLURM_TMPDIR\b|\{SLURM_TMPDIR\})", "", bind)))


def _binds(each: PlacedLaunch) -> list[str]:
    said = each.launch.settings.get("container.binds")
    return said if isinstance(said, list) else []


def _image(said: str, made: ScriptEnvironment) -> str:
    """Where an image lies that the script copied to the node's own disk: Serried does that by itself."""
    name = said.rsplit("/", 1)[-1]
    return made.copied.get(name, name) if re.search(tables.LOCAL_DISK, said) else said


def _accepted(name: str, settings: Mapping[str, Any], lines: list[Line]) -> Iterator[tuple[str, Any]]:
    """What serried.toml can say; the rest is said to be left."""
    kind = settings.get("launch.kind")
    unknown = to_toml.refused(name, "launch.kind", kind) if kind else None
    for key, value in settings.items():
        reason = unknown if key.startswith("launch.") and unknown else to_toml.refused(name, key, value)
        if reason is None:
            yield key, value
        elif key == "command":
            raise UsageError(reason)
        else:
            lines.append(line(0, f"{key} = {value}", LEFT, reason))


def _started(first: PlacedLaunch) -> Started:
    """How many processes the launchers start together: the innermost says how many, an outer one on how many nodes."""
    launch = first.launch
    if not launch.started:
        visible = static(launch.env.get("CUDA_VISIBLE_DEVICES", ()))
        return Started(one=True, gpus=len(visible.split(",")) if visible else None)
    outer, inner = launch.started[0], launch.started[-1]
    return inner if outer is inner else Started(inner.ranks, inner.total, outer.nodes or inner.nodes)


def _kind(first: PlacedLaunch, started: Started, counted: Counted) -> dict[str, Any]:
    """What starts the ranks, where it is not the agents. Slurm's tasks have variables that a program may read."""
    if started.one:
        return {"launch.kind": "single"} if counted.gpus > 1 else {}
    if first.launch.by != ["srun"] or counted.nodes * counted.ranks == 1:
        return {}
    return {"launch.kind": "srun", "launch.options": first.launch.options}


def _resources(counted: Counted, asked: Mapping[str, Any]) -> dict[str, Any]:
    """In the order of the configuration's page."""
    made: dict[str, Any] = {"resources.nodes": counted.nodes}
    if counted.gpus:
        made["resources.gpus"] = counted.gpus
        made["resources.gpu_type"] = asked.get("resources.gpu_type")
    if counted.ranks != counted.gpus:
        made["resources.ranks"] = counted.ranks
    made["resources.cpus"] = counted.cpus
    memory = [key for key in ("resources.mem_per_node", "resources.mem_per_cpu", "resources.mem") if key in asked]
    made |= {key: asked[key] for key in memory[:1]}
    dealt_with = {*made, *memory, "resources.gpu_type"}
    return made | {key: asked[key] for key in asked if key.startswith("resources.") and key not in dealt_with}


def _launched(name: str, group: list[PlacedLaunch], head: Header, found: Body) -> Iterator[Line]:
    for each in group:
        number, text = each.command.line, each.command.text
        yield line(number, text, TAKEN, f"`command` of `{name}`")
        for why in _doubts(each, found.made):
            yield line(number, text, LEFT, why)
    first, started = group[0], _started(group[0])
    counted = counts.count(head.asked, started)
    notes = list(counted.notes)
    several = counted.nodes * counted.ranks > 1
    if several and re.search(tables.ONCE, " ".join(map(as_shell, commands.words_of(first.launch, several)))):
        notes.append("the script's shell worked a part of it out once, and here each rank does for itself: see `{run}`")
    if _kind(first, started, counted).get("launch.kind") == "srun":
        notes.append(
            "each rank is a task of Slurm: for a program that reads RANK and not SLURM_PROCID, drop `launch.kind`"
        )
        if counted.ranks > 1 and head.asked.gpus_per_task:
            notes.append(
                "each task saw its own GPU alone: here all of its node, and it has to take that of SLURM_LOCALID"
            )
    for why in notes:
        yield line(first.command.line, first.command.text, LEFT, why)


def _doubts(each: PlacedLaunch, made: ScriptEnvironment) -> Iterator[str]:
    """What of a command may not be the same here."""
    yield from each.launch.notes
    shell = " ".join(as_shell(word) for word in each.launch.words)
    names = {braced or plain for braced, plain in re.findall(r"\$(?:\{\{?(\w+)|([A-Za-z_]\w*))", shell)}
    for name in sorted(names & set(made.hidden)):
        yield f"`${name}` is set in line {made.hidden[name]}, in a block that is not taken over"
    if re.search(r"\$(\{?\d|[@*#])", shell):
        yield "it uses words given behind the script's name: write them into the command"
    if _reaches_out(each):
        yield "it reaches out of this folder, and only the folder of serried.toml is copied: put the file further up"
    for bind in _binds(each):
        if _is_unknown_here(bind):
            yield f"`{bind}` is known on the node only: `container.binds` cannot name it"
    if each.launch.options and each.launch.by != ["srun"]:
        yield f"srun was told {', '.join(f'`{option}`' for option in each.launch.options)}, and nobody is here"


def _unsaid(head: Header, experiments: Sequence[ImportedExperiment]) -> Iterator[Line]:
    """What the scheduler's defaults decided, which are not Serried's."""
    memory = {"resources.mem", "resources.mem_per_node", "resources.mem_per_cpu", "resources.exclusive"}
    missing = [] if "resources.time" in head.settings else ["time"]
    missing += [] if memory & set(head.settings) else ["memory"]
    missing += [] if all("resources.cpus" in each.settings for each in experiments) else ["CPUs"]
    if missing:
        listed = " or ".join([", ".join(missing[:-1]), missing[-1]] if missing[1:] else missing)
        yield line(0, "", LEFT, f"it does not ask for {listed}: `serried submit` shows what Serried asks for then")


def _assignments(made: ScriptEnvironment, experiments: Sequence[ImportedExperiment]) -> Iterator[Line]:
    """Whether assignments and blocks are taken, once their readers are known."""
    unread = "nothing that is taken over reads it"
    said = _bare(" ".join(str(value) for each in experiments for value in each.settings.values()))
    for name, (number, text) in made.assigned.items():
        values = [_bare("".join(piece.text for piece in word)) for word in made.variables.values.get(name, ())]
        is_used = name in made.variables.used and not made.is_standing(name)
        if is_used and all(value in said for value in values):
            yield line(number, text, TAKEN, "filled in where it is used")
        else:
            yield line(number, text, NEEDLESS, unread)
    for each in made.steps:
        if each.is_block:
            where = made.taken.get(each)
            yield line(each.line, each.said, TAKEN if where else NEEDLESS, where or unread)


def _with_steps(lines: Sequence[Line], made: ScriptEnvironment) -> Iterator[Line]:
    """An assignment that stands in a command is taken, whatever else becomes of its variable."""
    taken = {(each.line, line(each.line, each.said, TAKEN, "").text): where for each, where in made.taken.items()}
    for each in lines:
        where = taken.get((each.number, each.text)) if each.fate == NEEDLESS else None
        yield dataclasses.replace(each, fate=TAKEN, why=where) if where else each


def _bare(text: str) -> str:
    return re.sub(r"['\"\\\s]", "", text)
