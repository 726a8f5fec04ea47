"""The commands that the pages on frameworks show, and programs that are started by them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from place import Place
from serried.schema.layout import RunDirectory

DOCS = Path(__file__).parents[1] / "docs"
SCRIPTS = Path(__file__).parent / "frameworks"
PAGES = ("lightning", "transformers", "accelerate", "nanogpt", "torchrun")
PATIENCE = 900
"""Seconds for four ranks to import a framework on a machine that does a hundred other things."""
SETTINGS = ("environment.env.HF_HUB_OFFLINE=1", "environment.env.OMP_NUM_THREADS=1")


def commands(page: str) -> list[str]:
    """The lines of `frameworks-PAGE.md` that submit something, in turn; with no PAGE, those of the overview."""
    text = (DOCS / "library" / (f"frameworks-{page}.md" if page else "frameworks.md")).read_text(encoding="utf-8")
    return re.findall(r"(?m)^ *(serried (?:submit|run) .*)$", text)


def submit(
    place: Place,
    page: str,
    number: int = 0,
    *,
    program: str | bytes,
    leaves: bool = False,
    options: Sequence[str] = (),
    arguments: str = "",
) -> str:
    """As that command of the page says, with more options and arguments after its own.

    `program` is a script of `tests/frameworks`, or what is in one. `leaves`: it leaves as it should, by itself.
    """
    words = shlex.split(commands(page)[number])
    end = words.index("--")
    assert words[:2] == ["serried", "submit"]
    prepare(place, program, leaves=leaves)
    path = f"{Path(sys.executable).parent}{os.pathsep}{place.environ['PATH']}"  # where `python` and `torchrun` are
    there = Place(place.cluster, place.project, {**place.environ, "PATH": path})
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    small = ("--cpus", "1", *settings, *options)
    return there.submit(*words[2:end], *small, "--", *words[end + 1 :], *shlex.split(arguments))


def prepare(place: Place, program: str | bytes, *, leaves: bool = False) -> None:
    """Make `program` the project's `train.py`."""
    text = program if isinstance(program, bytes) else (SCRIPTS / program).read_bytes()
    (place.project / ("train.py" if leaves else "program.py")).write_bytes(text)
    if not leaves:
        shutil.copy(SCRIPTS / "leaving.py", place.project / "train.py")


def lines(place: Place, run: str, pattern: str, attempt: int = 1) -> list[str]:
    """What ranks of an attempt have written and fits `pattern`, sorted."""
    logs = RunDirectory(place.directory(run)).path.glob(f"attempts/{attempt}/node-*/rank-*.log")
    found = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return sorted(line for line in found if re.fullmatch(pattern, line))
