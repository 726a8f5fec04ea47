"""Conda environments, found by the files that conda keeps: no shell needs to be set up for it, and none is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from serried.errors import UsageError, did_you_mean

PROGRAMS = ("conda", "mamba", "micromamba")
USUAL_ROOTS = ("miniforge3", "miniconda3", "mambaforge", "micromamba", "anaconda3", ".conda")
"""Folders that installers propose, in one's home."""
HISTORY = "conda-meta"
"""A folder that every conda environment has."""


def find(name: str, environ: Mapping[str, str]) -> Path:
    """The folder of the environment called `name`, or that lies at the absolute path `name`.

    Raises UsageError where there is none.
    """
    if "/" in name:
        if is_environment(Path(name)):
            return Path(name)
        raise UsageError(
            f"`{name}` is no conda environment: it has no `{HISTORY}`",
            hint="`conda info --envs` lists those that there are",
        )
    known = dict(reversed([(path.name, path) for path in _environments(environ)]))
    root = next((root for root in _roots(environ) if is_environment(root)), None)
    if root is not None:
        known["base"] = root
    if name not in known:
        listed = f"there are {', '.join(f'`{one}`' for one in sorted(known))}" if known else "give its folder instead"
        raise UsageError(f"there is no conda environment `{name}`", hint=did_you_mean(name, known) or listed)
    return known[name]


def is_environment(folder: Path) -> bool:
    return (folder / HISTORY).is_dir()


def program(environ: Mapping[str, str]) -> str | None:
    """The program that makes environments: on PATH, or where it says that it is."""
    said = [environ.get(name, "") for name in ("CONDA_EXE", "MAMBA_EXE")]
    found = [shutil.which(name, path=environ.get("PATH")) for name in PROGRAMS]
    in_roots = [str(root / "bin" / "conda") for root in _roots(environ)]
    return next((one for one in (*found, *said, *in_roots) if one and os.access(one, os.X_OK)), None)


def _environments(environ: Mapping[str, str]) -> Iterator[Path]:
    """Those there are; of several by one name the first is meant."""
    folders = [Path(part) for name in ("CONDA_ENVS_PATH", "CONDA_ENVS_DIRS") for part in _parts(environ.get(name, ""))]
    folders += [root / "envs" for root in _roots(environ)]
    for folder in dict.fromkeys(folders):
        yield from sorted(path for path in _entries(folder) if is_environment(path))
    try:  # conda writes down whatever it makes, wherever that is
        text = (_home(environ) / ".conda" / "environments.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    yield from (Path(line) for line in text.splitlines() if line.startswith("/") and is_environment(Path(line)))


def _roots(environ: Mapping[str, str]) -> list[Path]:
    """Where conda itself may be installed."""
    said = [Path(environ[name]) for name in ("MAMBA_ROOT_PREFIX", "CONDA_ROOT") if environ.get(name)]
    said += [Path(environ[name]).parent.parent for name in ("CONDA_EXE",) if environ.get(name)]
    active = environ.get("CONDA_PREFIX", "")
    if active:  # an environment of `root/envs/NAME`, or the root itself
        said += [Path(active).parent.parent] if Path(active).parent.name == "envs" else [Path(active)]
    found = shutil.which("conda", path=environ.get("PATH"))
    said += [Path(os.path.realpath(found)).parent.parent] if found else []
    return list(dict.fromkeys([*said, *(_home(environ) / name for name in USUAL_ROOTS)]))


def _parts(text: str) -> list[str]:
    return [part for part in text.split(os.pathsep) if part]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())
