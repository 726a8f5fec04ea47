"""Editable installs (`pip install -e .`) that point into the project.

A job that runs in the unpacked tree would import the *project* through them, as it is edited later. Folders that
they put on the path are named to the agent, which puts the tree's own before PYTHONPATH. What cannot be
overridden that way, because an import hook comes first, is refused.

How installers write them: a line with a folder in a `.pth` file (hatchling, poetry, pdm, flit, setuptools with a
`src` layout); `easy-install.pth` and `.egg-link` (old setuptools); `import X` in a `.pth` file, and in `X.py` a
`MAPPING` of packages to folders (setuptools, flat layouts), which is asked after the path; or a hook of their own,
which is asked before it (meson-python, scikit-build-core).
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from serried.errors import UsageError
from serried.snapshot.listing import Survey

_IMPORT = re.compile(r"import[ \t]+([A-Za-z_][A-Za-z0-9_]*)")


def redirect(survey: Survey, site_folders: Sequence[Path]) -> tuple[str, ...]:
    """The folders, relative to the tree, that make imports come from the tree and not from the project.

    Raises UsageError for an install that would import the project all the same.
    """
    project = Path(os.path.realpath(survey.project))
    found: dict[str, None] = {}
    for site in site_folders:
        for folder in _folders(site, project):
            relative = os.path.relpath(folder, project)
            if not _holds_code(survey, relative):
                raise UsageError(
                    f"an editable install in `{site}` points to `{folder}`, which the snapshot does not take",
                    hint="install the project without `editable_mode=strict`, or not editable (`pip install .`), "
                    "or run in place: `--set project.snapshot=false`",
                )
            found[relative] = None
    return tuple(found)


def site_folders(prefix: Path) -> list[Path]:
    """Where packages are under an environment's prefix."""
    folders = [*prefix.glob("lib/python3*/site-packages"), *prefix.glob("lib/python3*/dist-packages")]
    return sorted(folder for folder in folders if folder.is_dir())


def _folders(site: Path, project: Path) -> Iterator[Path]:
    """Folders within `project` that the files of `site` make importable."""
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
    """What an import hook named in a `.pth` file maps into the project."""
    try:
        code = (site / f"{module}.py").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    mapping = _mapping(code)
    if mapping is None:
        if _mentions(code, project):
            raise UsageError(
                f"`{site / module}.py` imports this project by a hook that cannot be turned to a snapshot",
                hint="install it not editable (`pip install .`), or run in place: `--set project.snapshot=false`",
            )
        return
    for name, where in mapping.items():
        target = Path(os.path.realpath(where))
        if not target.is_relative_to(project):
            continue
        parts = name.split(".")
        if list(target.with_suffix("").parts[-len(parts) :]) != parts:
            raise UsageError(
                f"package `{name}` is installed editable from `{target}`, a folder of another name",
                hint="give the folder the package's name, or run in place: `--set project.snapshot=false`",
            )
        yield target.parents[len(parts) - 1]


def _mapping(code: str) -> dict[str, str] | None:
    """The `MAPPING` of setuptools' finders; None in any other module."""
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
    """Whether the project's folder, and not just one whose name begins alike, occurs in it."""
    return re.search(re.escape(str(project)) + r"(?![^/'\"\\])", code) is not None


def _holds_code(survey: Survey, folder: str) -> bool:
    return folder == "." or any(path.startswith(f"{folder}/") for path in survey.files)
