"""Commit, branch and diff at submit, for the record: what ran, also when the snapshot is long purged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from serried.snapshot import git

DIFF_LIMIT = 20_000_000
"""Characters. A longer diff is data under version control; the snapshot has it."""


@dataclass(frozen=True)
class Revision:
    commit: str | None = None
    """None without git, or before the first commit."""
    branch: str | None = None
    diff: str = ""
    """`git diff HEAD --binary`: applies to `commit`."""

    @property
    def is_dirty(self) -> bool:
        """Whether tracked files differ from the commit."""
        return bool(self.diff)


def read_revision(project: Path) -> Revision:
    try:
        status = git.ask(project, "status", "-z", "--porcelain=v2", "--branch", "--untracked-files=no")
    except git.GitError:
        return Revision(None, None, "")
    lines = status.split("\0")
    # `# branch.oid ID`, `# branch.head NAME`, more lines of that kind, then an entry for each changed file.
    commit, branch = (line.split(" ", 2)[2] for line in lines[:2])
    if commit == "(initial)":
        return Revision(None, None, "")
    is_dirty = any(line and not line.startswith("# ") for line in lines)
    diff = _diff(project) if is_dirty else ""
    return Revision(commit, None if branch == "(detached)" else branch, diff)


def _diff(project: Path) -> str:
    # Said here, because a user's own settings (colours, external tools, no prefixes) make diffs that do not apply.
    diff = git.ask(
        project,
        *("-c", "core.quotepath=on", "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false"),
        *("diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short"),
    )
    return diff if len(diff) <= DIFF_LIMIT else f"# longer than {DIFF_LIMIT} characters\n"
