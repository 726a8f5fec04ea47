"""What git knows of the project. Git is asked; its files are never read."""

from __future__ import annotations

import os
from pathlib import Path

from serried import shell
from serried.errors import MissingProgramError

_FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_EXTERNAL_DIFF")
"""Set inside git's hooks and by some prompts: they would turn git to another repository."""


class GitError(Exception):
    """This is no work tree, git is not installed, or it refuses; the message is git's own."""


def ask(project: Path, *arguments: str) -> str:
    """What `git …arguments` prints in `project`. Raises GitError."""
    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    # Without optional locks, looking at a project cannot disturb a git that works there at the same time.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        result = shell.run(("git", *arguments), cwd=project, env=environment, timeout=120)
    except (MissingProgramError, shell.TimedOut) as error:
        raise GitError(error.message) from error
    if result.status != 0:
        raise GitError(result.stderr.strip() or f"git exited with status {result.status}")
    return result.stdout


def paths(output: str) -> list[str]:
    """The paths of a `-z` listing."""
    return [path for path in output.split("\0") if path]
