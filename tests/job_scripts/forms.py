"""Runs a job script in both forms: as `sbatch` or bash runs it, and as Serried does."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from job_scripts.sandbox import Sandbox
from serried.base import shell
from serried.base.errors import SerriedError, UsageError
from serried.schedulers.directives import GivenOption, Place, form
from serried.schedulers.pbs import directives as pbs_directives
from serried.schedulers.slurm import directives
from serried.schema import names

POLL_SECONDS = 0.2
TASKS = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID", names.TASK)
SCHEDULER_VARIABLE = re.compile(r"(SLURM|SLURMD|PBS|SBATCH)_.*|NCPUS|OMP_NUM_THREADS")
"""OpenPBS sets the last two."""
NODEFILE = "PBS_NODEFILE"
"""Names a file, which both forms read."""
SANDBOX = "{sandbox}"
RECORDING = ("PATH", "PYTHONPATH", "BASH_ENV")
"""Variables without which the recorded programs would not be reached."""
PATIENCE_SECONDS = 600
SITE_OPTIONS = (
    *("partition", "qos", "account", "constraint", "reservation", "licenses", "nodelist", "exclude", "clusters"),
    *("mail-type", "mail-user"),
)
"""Options that name things of one site: a lab has other partitions and accounts, and sends no mail."""
UNFINISHED = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED")
"""States of a job that has not ended."""


@dataclass(frozen=True)
class FormRun:
    """One form of a script, run to its end."""

    sandbox: Sandbox
    records: tuple[Mapping[str, Any], ...]
    statuses: Mapping[int | None, int]
    """Task of the array, or None -> exit status."""
    job: str
    """The scheduler's id; empty without a scheduler."""
    files: Mapping[str, str]
    """The project's files after the run, with their text."""
    directory: str = ""
    """The run directory, if Serried ran the script."""
    ignored: frozenset[int] = frozenset()
    """The statuses of failed launches and Python programs, if the script handled none of these failures."""


Pretended = Mapping[int | None, Mapping[str, str]]
"""Task of the array, or None -> variables of a scheduler."""


def adapted(text: str, file: str = "the script") -> str:
    """The script for the comparison: both forms run it in place of the original.

    `#SBATCH` lines lose the options that name partitions, accounts and the like. A script that does not take its user's
    environment gets the variables without which it would not reach the recorded programs. The number of lines stays.
    Raises UsageError for directives that sbatch would refuse.
    """
    lines = text.split("\n")
    for number, line in directives.GRAMMAR.header(text)[0].items():
        given = list(directives.options(directives.words(line, Place(file, number))))
        kept = [_with_variables(option) for option in given if option.name not in SITE_OPTIONS]
        if kept != given:
            words = [word for option in kept for word in directives.directive(option).words]
            lines[number - 1] = f"#SBATCH {shlex.join(words)}" if words else "#"
    if _is_pbs(text):
        first = next(number for number, line in enumerate(lines) if line.startswith("#PBS"))
        lines[first] += " -V"
    return "\n".join(lines)


def _is_pbs(text: str) -> bool:
    return pbs_directives.is_for(text) and not directives.is_for(text)


def _with_variables(option: GivenOption) -> GivenOption:
    value = option.value
    if option.name != "export" or "ALL" in value.upper().split(","):
        return option
    names = [] if value.upper() in ("NONE", "NIL") else [value]
    return option._replace(value=",".join([*names, *RECORDING]))


def run_sbatch(
    sandbox: Sandbox, script: str, arguments: Sequence[str], around: Mapping[str, str], tasks: Sequence[int] = ()
) -> FormRun:
    """Submit the script to Slurm and wait for its end."""
    return finish_sbatch(start_sbatch(sandbox, script, arguments, around, tasks), sandbox, around)


def start_sbatch(
    sandbox: Sandbox, script: str, arguments: Sequence[str], around: Mapping[str, str], tasks: Sequence[int] = ()
) -> str:
    """The job's id."""
    output = sandbox.folder / "output-%a.txt" if tasks else sandbox.folder / "output.txt"
    argv = ["sbatch", "--parsable", f"--output={output}", f"--error={output}"]
    if tasks:
        argv.append("--array=" + ",".join(map(str, tasks)))
    environment = sandbox.environment(around)
    sandbox.clear_records()
    argv[0] = str(shell.which("sbatch"))
    result = shell.run([*argv, script, *arguments], env=environment, cwd=sandbox.directory)
    if result.status != 0:
        raise UsageError("sbatch refuses the script", details=result.stderr)
    return result.stdout.strip().partition(";")[0]


def finish_sbatch(job: str, sandbox: Sandbox, around: Mapping[str, str]) -> FormRun:
    environment = dict(around)
    shown = ""

    def has_ended() -> bool:
        nonlocal shown
        shown = shell.run(["scontrol", "--oneliner", "show", "job", job], env=environment).stdout
        states = re.findall(r"\bJobState=(\w+)", shown)
        return bool(states) and not set(UNFINISHED) & set(states)

    _wait(has_ended, f"job {job}")
    statuses: dict[int | None, int] = {}
    for line in shown.splitlines():
        task = re.search(r"\bArrayTaskId=(\d+)\b", line)
        code = re.search(r"\bExitCode=(\d+):(\d+)", line)
        if code:
            statuses[int(task[1]) if task else None] = int(code[1]) or (128 + int(code[2]) if code[2] != "0" else 0)
    return _ended(sandbox, statuses, job)


def run_bash(
    sandbox: Sandbox,
    script: str,
    arguments: Sequence[str],
    around: Mapping[str, str],
    tasks: Sequence[int] = (),
    *,
    pretended: Pretended,
) -> FormRun:
    """Run the script on this machine, by its own interpreter, once for each task.

    `pretended` has the variables of a scheduler for each task.
    """
    sandbox.clear_records()
    statuses: dict[int | None, int] = {}
    path = sandbox.directory / script
    is_pbs = _is_pbs(path.read_text(errors="replace"))
    interpreter = _interpreter(path)
    folder = Path(around["HOME"]) if is_pbs else sandbox.directory  # as qsub and sbatch
    for task in tasks or (None,):
        variables = pretended.get(task, {}).items()
        own = {name: value.replace(SANDBOX, str(sandbox.folder)) for name, value in variables}
        environment = sandbox.environment({**around, **own})
        environment["PWD"] = str(folder)
        login = ["bash", "-l", "-c", 'exec "$0" "$@"'] if is_pbs else []  # pbs_mom has a login shell start a script
        result = shell.run([*login, *interpreter, str(path), *arguments], env=environment, cwd=folder)
        (sandbox.folder / f"output-{task}.txt").write_text(result.stdout + result.stderr, errors="surrogateescape")
        statuses[task] = result.status if result.status >= 0 else 128 - result.status
    return _ended(sandbox, statuses, "")


def pretended_variables(run: FormRun, around: Mapping[str, str]) -> Pretended:
    """The variables of a scheduler that Serried gave to each task of a run on this machine."""
    variables: dict[int | None, dict[str, str]] = {}
    for record in run.records:
        environment = record["environment"]
        task = task_of(environment)
        if record["launch"] is None and task not in variables:
            variables[task] = {
                name: value if name == NODEFILE else value.replace(str(run.sandbox.folder), SANDBOX)
                for name, value in environment.items()
                if SCHEDULER_VARIABLE.fullmatch(name) and name not in around
            }
    return variables


def task_of(environment: Mapping[str, str]) -> int | None:
    """The task of the array, from a program's environment."""
    found = next((environment[name] for name in TASKS if environment.get(name, "").isdigit()), None)
    return None if found is None else int(found)


def _interpreter(path: Path) -> list[str]:
    return [*form(path.read_text(errors="replace")).interpreter] or ["/bin/sh"]


def run_serried(
    sandbox: Sandbox,
    words: Sequence[str],
    around: Mapping[str, str],
    tasks: Sequence[int] = (),
    *,
    place: Sequence[str],
) -> FormRun:
    """`serried submit --cluster PLACE WORDS`, to its end."""
    sandbox.clear_records()
    array = ["--array=" + ",".join(map(str, tasks))] if tasks else []
    submitted = _serried(sandbox, around, "submit", "--cluster", *place, "--json", *array, *words)
    (run,) = (each["id"] for each in submitted["runs"])
    selected: dict[int | None, str] = {task: f"{run}/{task}" for task in tasks} or {None: run}
    ended = _serried(sandbox, around, "wait", "--json", *selected.values())["runs"]
    statuses = {task: _status(each) for task, each in zip(selected, ended, strict=True)}
    directory = Path(ended[0]["directory"]).resolve()
    made = _ended(sandbox, statuses, str(ended[0]["job"]))
    return replace(made, directory=str(directory), ignored=frozenset(_ignored(directory)))


def _ignored(directory: Path) -> Iterator[int]:
    for path in directory.rglob("launches/failures/*.json"):
        call = json.loads(path.read_text())
        if not call["handled"]:
            yield call["status"]


def _status(ended: Mapping[str, Any]) -> int:
    """The run's exit status; 1 for a run that failed without one."""
    code: int | None = ended["exit_code"]
    return code if code is not None else int(ended["state"] != names.COMPLETED)


def _serried(sandbox: Sandbox, around: Mapping[str, str], *words: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "serried", *words]
    result = shell.run(argv, env=sandbox.environment(around), cwd=sandbox.directory, timeout=PATIENCE_SECONDS)
    try:
        answer: dict[str, Any] = json.loads(result.stdout)
    except ValueError:
        kind = UsageError if result.status == UsageError.exit_code else SerriedError
        message = f"Serried's form fails: `serried {shlex.join(words)}`"
        raise kind(message, details=result.stderr or result.stdout) from None
    return answer


def _ended(sandbox: Sandbox, statuses: Mapping[int | None, int], job: str) -> FormRun:
    files = {
        str(path.relative_to(sandbox.project)): path.read_text(errors="replace")
        for path in sorted(sandbox.project.rglob("*"))
        if path.is_file() and not path.is_symlink()  # a link leads to the log
    }
    return FormRun(sandbox, tuple(sandbox.records()), dict(statuses), job, files)


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SerriedError(f"{what} does not end")
        time.sleep(POLL_SECONDS)
