"""A project's folder, and what is decided there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from serried import config
from serried.base.errors import UsageError
from serried.config import Resolved

BARE = ("python", "train.py")


def resolve(
    folder: Path,
    text: str | bytes | None = None,
    *,
    name: str | None = None,
    command: tuple[str, ...] | None = None,
    cluster: str | None = None,
    **overrides: Any,
) -> Resolved:
    """Resolve in `folder` with `text` as its serried.toml; overrides have `__` for dots."""
    if text is not None:
        (folder / "serried.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return config.resolve(name, command, given, cluster, folder, os.environ)


def refusal(folder: Path, text: str | bytes, **options: Any) -> tuple[str, str | None]:
    with pytest.raises(UsageError) as caught:
        resolve(folder, text, **options)
    return caught.value.message, caught.value.hint


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, sinfo: str = "") -> None:
    """Put commands on PATH that make this look like a Slurm."""
    programs = folder.parent / "bin"
    programs.mkdir()
    for name, says in (("sbatch", ""), ("sinfo", sinfo)):
        (programs / name).write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
