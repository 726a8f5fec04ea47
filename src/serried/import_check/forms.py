"""Runs a job script in both forms: as `sbatch` or bash runs it, and as Serried does."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import shell
from serried.errors import SerriedError
from serried.import_check.sandbox import Sandbox
from serried.protocol import names
from serried.schedulers.directives import Place, form
from serried.schedulers.slurm import directives, sbatch_options

POLL_SECONDS = 0.2
FILE = "the script"
STUB_VARIABLES = ("PATH", "PYTHONPATH", "BASH_ENV")
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
    """Files that the run wrote into the project, with their text."""


def without_site(text: str) -> str:
    """The script without the options of `#SBATCH` lines that name partitions, accounts and the like.

    The number of lines stays. Raises UsageError for directives that sbatch would refuse.
    """
    lines = text.split("\n")
    for number, line in sbatch_options.header(text)[0].items():
        given = list(sbatch_options.options(list(sbatch_options.words(line, Place(FILE, number)))))
        kept = [word for option in given if option.name not in SITE_OPTIONS for word in option.words()]
        if any(option.name in SITE_OPTIONS for option in given):
            lines[number - 1] = f"#SBATCH {shlex.join(kept)}" if kept else "#"
    return "\n".join(lines)


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
    argv = ["sbatch", "--parsable", f"--output={output}", f"--error={output}", *_export(sandbox, script)]
    if tasks:
        argv.append("--array=" + ",".join(map(str, tasks)))
    environment = sandbox.environment(around)
    argv[0] = str(shell.which("sbatch"))
    result = shell.run([*argv, script, *arguments], env=environment, cwd=sandbox.directory)
    if result.status != 0:
        raise SerriedError("sbatch refuses the script", details=result.stderr)
    return result.stdout.strip().partition(";")[0]


def _export(sandbox: Sandbox, script: str) -> Iterator[str]:
    """`--export` for a script that does not take its user's environment: the recorded programs have to be there."""
    text = (sandbox.directory / script).read_text(errors="replace")
    export = directives.read(text).export
    if export.inherit != "all":
        inherited = () if export.inherit == "none" else export.inherit
        values = [f"{name}={value}" for name, value in export.values.items()]
        yield "--export=" + ",".join([*inherited, *values, *STUB_VARIABLES])


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
    sandbox: Sandbox, script: str, arguments: Sequence[str], around: Mapping[str, str], tasks: Sequence[int] = ()
) -> FormRun:
    """Run the script on this machine, by its own interpreter, once for each task."""
    statuses: dict[int | None, int] = {}
    for task in tasks or (None,):
        environment = sandbox.environment({**around, **_variables(task)})
        path = sandbox.directory / script
        result = shell.run([*_interpreter(path), str(path), *arguments], env=environment, cwd=sandbox.directory)
        (sandbox.folder / f"output-{task}.txt").write_text(result.stdout + result.stderr, errors="surrogateescape")
        statuses[task] = result.status if result.status >= 0 else 128 - result.status
    return _ended(sandbox, statuses, "")


def _interpreter(path: Path) -> list[str]:
    return [*form(path.read_text(errors="replace")).interpreter] or ["/bin/sh"]


def _variables(task: int | None) -> dict[str, str]:
    return {} if task is None else {"SLURM_ARRAY_TASK_ID": str(task)}


def run_import(sandbox: Sandbox, script: Path, around: Mapping[str, str]) -> str:
    """Import the script into a new serried.toml. Returns the name of the experiment."""
    (sandbox.directory / "serried.toml").unlink(missing_ok=True)
    name: str = _serried(sandbox, around, "import", "--json", str(script))["name"]
    return name


def run_serried(
    sandbox: Sandbox, words: Sequence[str], around: Mapping[str, str], tasks: Sequence[int] = (), *, cluster: str
) -> FormRun:
    """`serried submit WORDS`, to its end."""
    array = ["--array=" + ",".join(map(str, tasks))] if tasks else []
    submitted = _serried(sandbox, around, "submit", "--cluster", cluster, "--json", *array, *words)
    (run,) = (each["id"] for each in submitted["runs"])
    selected: dict[int | None, str] = {task: f"{run}/{task}" for task in tasks} or {None: run}
    ended = _serried(sandbox, around, "wait", "--json", *selected.values())["runs"]
    statuses = {task: _status(each) for task, each in zip(selected, ended, strict=True)}
    return _ended(sandbox, statuses, str(ended[0]["job"]))


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
        shown = f"`serried {shlex.join(words)}` failed"
        raise SerriedError(shown, details=result.stderr or result.stdout) from None
    return answer


def _ended(sandbox: Sandbox, statuses: Mapping[int | None, int], job: str) -> FormRun:
    files = {
        str(path.relative_to(sandbox.project)): path.read_text(errors="replace")
        for path in sorted(sandbox.project.rglob("*"))
        if path.is_file()
    }
    return FormRun(sandbox, tuple(sandbox.records()), dict(statuses), job, files)


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SerriedError(f"{what} does not end")
        time.sleep(POLL_SECONDS)
