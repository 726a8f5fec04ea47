"""Whether the job will find the files that a command names: it runs in the snapshot, not in the project."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from serried.config import shell_words
from serried.errors import UsageError, did_you_mean
from serried.plan import Plan
from serried.snapshot import Survey

_UNKNOWN = re.compile(r"[{$~*?]")
"""In a word that only a placeholder or a shell completes."""


def check(plan: Plan, each: Sequence[Sequence[str]], survey: Survey) -> None:
    """Raises UsageError for a script that the snapshot does not hold: the job would fail only after the queue."""
    for command in _commands(plan, each):
        script = shell_words.script_of(command)
        if script is None or script.startswith("/") or _UNKNOWN.search(script):
            continue
        path = _path(plan, script)
        if not _is_held(survey, path):
            raise _refusal(script, path, survey)


def warnings(plan: Plan, each: Sequence[Sequence[str]], survey: Survey) -> Iterator[str]:
    """One for each other path in the command that is here and will not be in the job."""
    found = dict.fromkeys(name for command in _commands(plan, each) for name in _paths(command))
    for name in found:
        path = _path(plan, name)
        if _leads_out(path):
            yield (
                f"`{name}` in the command leads out of the snapshot, beside which the job finds nothing: "
                "use its absolute path, or `--stage` it"
            )
        elif os.path.lexists(survey.project / path) and not _is_held(survey, path):
            yield (
                f"`{name}` in the command is here and not in the snapshot: git ignores it, or it is an empty folder. "
                f'`project.link = ["{path}"]` links to it'
            )


def _commands(plan: Plan, each: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """None of a shell's text: there is no telling what it makes before."""
    if not plan.shell:
        yield from each or [plan.command]


def _paths(command: Sequence[str]) -> Iterator[str]:
    """Relative paths among the arguments, `--data=../data` too; the script is looked at by itself."""
    script = shell_words.script_of(command)
    for word in command[1:]:
        name = word.partition("=")[2] if word.startswith("-") else word
        if name and name != script and not name.startswith(("/", "-")) and not _UNKNOWN.search(name):
            yield name


def _path(plan: Plan, name: str) -> str:
    """Relative to the snapshot's root."""
    return os.path.normpath(f"{plan.source.workdir}/{name}")


def _leads_out(path: str) -> bool:
    return path.split("/", 1)[0] == os.pardir


def _is_held(survey: Survey, path: str) -> bool:
    if path == os.curdir:
        return True
    above = [str(parent) for parent in Path(path).parents]
    # Through a symbolic link that the snapshot has, or an entry that it links to.
    if any(name in survey.links or name in survey.known for name in (path, *above)):
        return True
    return any(file.startswith(f"{path}/") for file in survey.files)


def _refusal(script: str, path: str, survey: Survey) -> UsageError:
    if _leads_out(path):
        return UsageError(
            f"`{script}` is not in what the job gets, a snapshot of `{survey.project}`",
            hint="submit from the folder that holds all of the code, with `workdir` in its `serried.toml`",
        )
    if os.path.lexists(survey.project / path):
        return UsageError(
            f"`{script}` is not in the snapshot that the job gets: git ignores it",
            hint=f'`link = ["{path}"]` under `[project]` links to it; or let git know it',
        )
    folder = Path(path).parent
    there = [Path(file).name for file in survey.files if Path(file).parent == folder]
    return UsageError(
        f"there is no `{script}` in `{survey.project / folder}`",
        hint=did_you_mean(Path(path).name, there) or "paths in a command are relative to `workdir`",
    )
