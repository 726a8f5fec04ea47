"""A job script -> an experiment: all that the script does as settings, or the script itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from serried import schedulers
from serried.config import shell_words
from serried.errors import UsageError
from serried.importing import body, script, to_toml
from serried.importing.body import Body
from serried.importing.launchers import RecognisedLaunch, Shape
from serried.importing.lines import names
from serried.importing.report import Imported, ScriptLine, is_secret, shown
from serried.importing.suggestions import suggest
from serried.schedulers.directives import Directives, Objection, form

_BASH = re.compile(r"(?:/usr/bin/env bash|/(?:usr/(?:local/)?)?bin/bash)(?: -[eux]+)?")
"""Interpreters that read lines as `body` does. `bash -l` also reads the user's profile, and `sh` may be dash."""
_SHELLS = re.compile(r"(?:.*[/ ])?(?:ba|z|k|da)?sh(?: .*)?")
_PASSED = names(
    "--acctg-freq --begin --contiguous --deadline --exclude --hold --nice --priority --reboot --switches --tmp"
    " --wckey -P -p -a -h"
)
"""Options without a key of their own that mean the same for a job of Serried."""
_INEXACT = names("--cpus-per-gpu --exclusive --gpus-per-socket --gpus-per-task --ntasks-per-gpu --tres-per-task")
"""Options that do more than decide what their keys say."""
_GRES = re.compile(r"--gres=gpu(?::[\w.-]+){0,2}")
_SELECT = re.compile(r"select=\d+(?::(?:ncpus|ngpus|mpiprocs|mem)=\w+)+|walltime=[\d:]+|place=scatter")
_MEMORY = ("mem", "mem_per_node", "mem_per_cpu")


def read(content: bytes, file: str, name: str | None = None, *, runs_copies: bool | None = None) -> Imported:
    """What the script `file` with this content says.

    The experiment's name is `name`, else the job's, else the file's. `runs_copies`: whether the project runs copies of
    the code; None without a serried.toml. Raises UsageError for files that are not job scripts, or that cannot run.
    """
    text = script.text(content, file)
    scheduler = schedulers.of_script(text)
    directives = schedulers.reader(scheduler).read(text, None, file) if scheduler else Directives()
    interpreter = " ".join(form(text).interpreter)
    called = (name or directives.name or "").strip() or PurePath(file).stem or "job"
    reasons = [*_of_interpreter(interpreter), *_of_encoding(text)]
    plain = text.replace("\r\n", "\n").encode(errors="surrogateescape").decode(errors="replace")
    found = Body()
    if not reasons:
        found = body.read(plain, _shape(directives, is_pbs=scheduler == "pbs"), begins_at_home=scheduler == "pbs")
        reasons += [*_of_directives(directives), *_of_size(directives, found.launch), *found.reasons]
    if runs_copies:
        why = "serried.toml runs copies of the code, and the script runs the files themselves: see `project.snapshot`"
        reasons.append(ScriptLine(0, "", why))
    if not reasons and found.launch:
        in_place = {"project.snapshot": False} if runs_copies is None else {}
        settings = {**in_place, **_started(found.launch), **_requested(directives, found.launch), **found.settings}
        refusal = to_toml.refusal(called, settings)
        if refusal is not None:
            reasons.append(ScriptLine(0, "", refusal))
        else:
            suggestions = suggest(plain, called, file, is_command=True) if in_place else ()
            return Imported(called, settings, None, (), tuple(found.dropped), directives.notes, suggestions)
    _check_runs(text, file, scheduler)
    first = {reason.line: reason for reason in reversed(reasons)}
    return Imported(
        called,
        {"script": _as_text([PurePath(file).as_posix()])},
        file,
        tuple(first[line] for line in sorted(first)),
        (),
        directives.notes,
        suggest(plain, called, file, is_command=False) if not interpreter or _SHELLS.fullmatch(interpreter) else (),
    )


def _of_interpreter(interpreter: str) -> Iterator[ScriptLine]:
    if not interpreter:
        yield ScriptLine(0, "", "it begins without `#!`: the scheduler chooses the shell")
    elif not _BASH.fullmatch(interpreter):
        yield ScriptLine(1, f"#!{interpreter}", "only bash is read, without the profile of a login shell")


def _of_encoding(text: str) -> Iterator[ScriptLine]:
    if re.search(r"[\udc80-\udcff]", text):
        yield ScriptLine(0, "", "the script is not UTF-8 text")


def _check_runs(text: str, file: str, scheduler: str | None) -> None:
    """Raise UsageError for a script that the scheduler would refuse."""
    refused = schedulers.reader(scheduler).OBJECTIONS if scheduler else {Objection.DOS_LINES}
    objection = next((each for each in form(text).objections if each in refused), None)
    if objection is not None:
        name = shlex.quote(file)
        hint = {
            Objection.DOS_LINES: rf"convert the line breaks: sed -i 's/\r$//' {name}",
            Objection.NO_INTERPRETER: f"begin the script with a line `#!/bin/bash`: sed -i '1i #!/bin/bash' {name}",
        }.get(objection)
        raise UsageError(f"`{file}` {objection.value}, so the scheduler refuses it", hint=hint)


def _shape(directives: Directives, *, is_pbs: bool) -> Shape:
    size = directives.size
    tasks = -(-size.tasks // size.nodes)
    if is_pbs:
        placeholders = {"PBS_ARRAY_INDEX": "{task}"} if directives.array else {}
        return Shape(size.nodes, tasks, size.gpus, None, {}, placeholders)
    given = dict(words.partition("=")[::2] for each in directives.options for words in each.words)
    number = {
        "SLURM_CPUS_PER_TASK": given.get("--cpus-per-task"),
        "SLURM_NTASKS_PER_NODE": given.get("--ntasks-per-node"),
        "SLURM_NTASKS": str(size.tasks) if {"--ntasks", "--ntasks-per-node"} & given.keys() else None,
        "SLURM_NNODES": str(size.nodes),
        "SLURM_JOB_NUM_NODES": str(size.nodes),
        "SLURM_GPUS_ON_NODE": str(size.gpus) if size.gpus else None,
        "SLURM_GPUS_PER_NODE": given.get("--gpus-per-node", "").strip() or None,
    }
    values = {name: value for name, value in number.items() if value and value.isdecimal()}
    placeholders = {"SLURM_NNODES": "{nodes}", "SLURM_JOB_NUM_NODES": "{nodes}", "SLURM_GPUS_ON_NODE": "{gpus}"}
    placeholders = {name: placeholder for name, placeholder in placeholders.items() if name in values}
    if directives.array:
        placeholders["SLURM_ARRAY_TASK_ID"] = "{task}"
    cpus = given.get("--cpus-per-task", "")
    return Shape(size.nodes, tasks, size.gpus, int(cpus) if cpus.isdecimal() else None, values, placeholders)


def _of_directives(directives: Directives) -> Iterator[ScriptLine]:
    """Requests that serried.toml does not express, or expresses otherwise."""
    for directive in directives.options:
        words = " ".join(directive.words)
        option = directive.words[0].partition("=")[0]
        if option == "-l":
            is_exact = _SELECT.fullmatch(words.removeprefix("-l ")) is not None
        elif option == "--gres":
            is_exact = _GRES.fullmatch(words) is not None
        elif option == "--gpus":
            is_exact = directives.size.nodes == 1
        else:
            is_exact = option not in _INEXACT and (bool(directive.keys) or option in _PASSED)
        if not is_exact:
            yield ScriptLine(directive.line, shown(words), f"only the scheduler knows all that `{option}` does")
    kept = {
        "the folder of the script": directives.chdir,
        "a dependency": directives.dependency,
        "the standard input": directives.input,
        "that the job is requeued": directives.requeues,
        "a warning signal": directives.signal,
        "the shell of the script": directives.shell,
        "the variables that the script inherits": directives.export.inherit != "all",
        "a secret": any(map(is_secret, directives.export.values)),
    }
    for what, is_given in kept.items():
        if is_given:
            yield ScriptLine(0, "", f"a directive sets {what}")


def _of_size(directives: Directives, launch: RecognisedLaunch | None) -> Iterator[ScriptLine]:
    """Sizes that the scheduler decides, or that Serried would count otherwise."""
    size, settings = directives.size, directives.settings
    if "resources.time" not in settings:
        yield ScriptLine(0, "", "it requests no time limit: the scheduler's default holds")
    if not any(f"resources.{key}" in settings for key in _MEMORY):
        yield ScriptLine(0, "", "it requests no memory: the scheduler's default holds")
    given = {directive.words[0].partition("=")[0] for directive in directives.options}
    is_spread = size.tasks > size.nodes > 1 and "--ntasks" in given and "--ntasks-per-node" not in given
    if size.nodes != size.most_nodes or size.tasks % size.nodes or is_spread:
        yield ScriptLine(0, "", "the scheduler decides how tasks share the nodes")
        return
    if launch is None:
        return
    units = size.gpus or launch.ranks
    if size.cpus % units:
        yield ScriptLine(0, "", f"{size.cpus} CPUs are not a whole number for each of {units}")
    if size.gpus and size.gpus % launch.ranks and launch.ranks % size.gpus:
        yield ScriptLine(0, "", f"{size.gpus} GPUs are not shared evenly by {launch.ranks} processes")


def _requested(directives: Directives, launch: RecognisedLaunch) -> dict[str, Any]:
    """`array` and `resources`, with the ranks of the launch."""
    size, units = directives.size, directives.size.gpus or launch.ranks
    settings = {key: value for key, value in directives.settings.items() if key.startswith("resources.")}
    settings |= {"resources.nodes": size.nodes, "resources.cpus": size.cpus // units}
    settings["resources.ranks"] = launch.ranks
    if not size.gpus:
        del settings["resources.gpus"]
    elif launch.ranks == size.gpus:
        del settings["resources.ranks"]
    extra = [word for directive in directives.options if not directive.keys for word in directive.words]
    order = ["nodes", "gpus", "gpu_type", "ranks", "cpus", *_MEMORY, "time"]
    ordered = dict.fromkeys([f"resources.{key}" for key in order if f"resources.{key}" in settings])
    made: dict[str, Any] = {"array": directives.array} if directives.array else {}
    made |= {key: settings[key] for key in dict.fromkeys([*ordered, *settings])}
    made |= {"resources.extra": extra} if extra else {}
    return made | {f"environment.env.{name}": value for name, value in directives.export.values.items()}


def _as_text(words: list[str]) -> str | list[str]:
    """The words as text, if splitting the text gives them again."""
    joined = " ".join(word if re.fullmatch(r"[\w@%+=:,./{}-]+", word) else shlex.quote(word) for word in words)
    return joined if "\n" not in joined and shell_words.split(joined) == tuple(words) else words


def _started(launch: RecognisedLaunch) -> dict[str, Any]:
    """`command` and `launch`."""
    made: dict[str, Any] = {"command": _as_text(launch.command)}
    made["launch.kind"] = launch.kind
    if launch.options:
        made["launch.options"] = launch.options
    if launch.max_restarts:
        made["launch.max_restarts"] = launch.max_restarts
    return made
