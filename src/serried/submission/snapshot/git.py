"""Runs git in the project: commit, branch and diff at submit. Serried never reads git's own files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from serried.base import shell
from serried.base.errors import MissingProgramError

DIFF_LIMIT = 20_000_000
"""Characters. A longer diff is of data under version control; the snapshot has the data."""
_FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_EXTERNAL_DIFF")
"""Git's hooks and some prompts set these. They would direct git to another repository."""


class GitError(Exception):
    """The folder is not a work tree, git is not installed, or git fails. The message is git's own."""


@dataclass(frozen=True)
class Revision:
    commit: str | None = None
    """None without git, or before the first commit."""
    branch: str | None = None
    diff: str = ""
    """`git diff HEAD --binary`, which applies to `commit`."""

    @property
    def is_dirty(self) -> bool:
        """Do tracked files differ from the commit?"""
        return bool(self.diff)


def read_revision(project: Path) -> Revision:
    try:
        status = run(project, "status", "-z", "--porcelain=v2", "--branch", "--untracked-files=no")
    except GitError:
        return Revision()
    lines = status.split("\0")
    # `# branch.oid ID`, `# branch.head NAME`, more lines of that kind, then an entry for each changed file.
    commit, branch = (line.split(" ", 2)[2] for line in lines[:2])
    if commit == "(initial)":
        return Revision()
    is_dirty = any(line and not line.startswith("# ") for line in lines)
    return Revision(commit, None if branch == "(detached)" else branch, _diff(project) if is_dirty else "")


def _diff(project: Path) -> str:
    # A user's own settings (colours, external tools, no prefixes) would produce diffs that do not apply.
    diff = run(
        project,
        *("-c", "core.quotepath=on", "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false"),
        *("diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short"),
    )
    return diff if len(diff) <= DIFF_LIMIT else f"# longer than {DIFF_LIMIT} characters\n"


def list_paths(project: Path, *arguments: str) -> list[str]:
    """The paths of a `-z` listing. Raises GitError."""
    return [path for path in run(project, *arguments).split("\0") if path]


def run(project: Path, *arguments: str) -> str:
    """The output of `git …arguments` in `project`. Raises GitError."""
    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    # Without optional locks, this git cannot disturb another one that runs in the project.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        result = shell.run(("git", *arguments), cwd=project, env=environment, timeout=120)
    except (MissingProgramError, shell.TimedOut) as error:
        raise GitError(error.message) from error
    if result.status != 0:
        raise GitError(result.stderr.strip() or f"git exited with status {result.status}")
    return result.stdout
