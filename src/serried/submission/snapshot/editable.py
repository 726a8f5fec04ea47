"""Editable installs (`pip install -e .`) that point into the project.

Through them, a job in the unpacked tree would import the *project*, with its later edits. The agent receives the
folders that they add to the path, and puts the same folders of the tree into PYTHONPATH, before them. An import hook
that runs before the path cannot be overridden: Serried refuses such an install.

The forms that installers write: a line with a folder in a `.pth` file (hatchling, poetry, pdm, flit, setuptools with a
`src` layout); `easy-install.pth` and `.egg-link` (old setuptools); `import X` in a `.pth` file and, in `X.py`, a
`MAPPING` of packages to folders (setuptools, flat layouts), a hook that runs after the path; or a hook of their own
that runs before it (meson-python, scikit-build-core).
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from serried.base.errors import UsageError
from serried.submission.snapshot.listing import Survey

_IMPORT = re.compile(r"import[ \t]+([A-Za-z_][A-Za-z0-9_]*)")


def redirect(survey: Survey, site_folders: Sequence[Path]) -> tuple[str, ...]:
    """The folders of the tree, relative to it, from which imports must come instead of from the project.

    Raises UsageError for an install that would still import the project.
    """
    project = Path(os.path.realpath(survey.project))
    found: dict[str, None] = {}
    for site in site_folders:
        for folder in _folders(site, project):
            relative = os.path.relpath(folder, project)
            if not _holds_code(survey, relative):
                raise UsageError(
                    f"an editable install in `{site}` points to `{folder}`, which is not in the snapshot",
                    hint="install the project without `editable_mode=strict`, or without `-e` (`pip install .`), "
                    "or run in place: `--set project.snapshot=false`",
                )
            found[relative] = None
    return tuple(found)


def site_folders(prefix: Path) -> list[Path]:
    """The folders of packages below an environment's prefix."""
    folders = [*prefix.glob("lib/python3*/site-packages"), *prefix.glob("lib/python3*/dist-packages")]
    return sorted(folder for folder in folders if folder.is_dir())


def _folders(site: Path, project: Path) -> Iterator[Path]:
    """The folders in `project` that files of `site` add to the path."""
    for name in sorted(_names(site)):
        text = (site / name).read_text(encoding="utf-8", errors="surrogateescape")
        for line in text.splitlines()[:1] if name.endswith(".egg-link") else text.splitlines():
            hook = _IMPORT.match(line)
            if hook:
                yield from _hooked(site, hook[1], project)
            elif line.strip() and not line.startswith("#"):
                folder = Path(os.path.realpath(site / line.strip()))
                if folder.is_relative_to(project) and folder.is_dir():
                    yield folder


def _names(site: Path) -> list[str]:
    try:
        return [file.name for file in site.iterdir() if file.suffix in (".pth", ".egg-link")]
    except OSError:
        return []


def _hooked(site: Path, module: str, project: Path) -> Iterator[Path]:
    """The folders in `project` to which an import hook in a `.pth` file maps packages."""
    try:
        code = (site / f"{module}.py").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    mapping = _mapping(code)
    if mapping is None:
        if _mentions(code, project):
            raise UsageError(
                f"`{site / module}.py` imports this project by a hook that Serried cannot redirect to a snapshot",
                hint="install it without `-e` (`pip install .`), or run in place: `--set project.snapshot=false`",
            )
        return
    for name, where in mapping.items():
        target = Path(os.path.realpath(where))
        if not target.is_relative_to(project):
            continue
        parts = name.split(".")
        if list(target.with_suffix("").parts[-len(parts) :]) != parts:
            raise UsageError(
                f"package `{name}` has an editable install from `{target}`, a folder of another name",
                hint="rename the folder to the package's name, or run in place: `--set project.snapshot=false`",
            )
        yield target.parents[len(parts) - 1]


def _mapping(code: str) -> dict[str, str] | None:
    """The `MAPPING` in a finder of setuptools; None for any other module."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError):
        return None
    for statement in body:
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "MAPPING" and isinstance(statement, ast.AnnAssign):
            value = ast.literal_eval(statement.value) if statement.value else None
            return value if isinstance(value, dict) else None
    return None


def _mentions(code: str, project: Path) -> bool:
    """Whether the code contains the project's path, and not only a longer path that begins with it."""
    return re.search(re.escape(str(project)) + r"(?![^/'\"\\])", code) is not None


def _holds_code(survey: Survey, folder: str) -> bool:
    return folder == "." or any(path.startswith(f"{folder}/") for path in survey.files)
