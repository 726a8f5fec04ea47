"""The commands that the page on frameworks shows, and programs that are started by them."""

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
PAGE = DOCS / "library" / "frameworks.md"
SECTIONS = {
    "lightning": "Lightning",
    "transformers": "Hugging Face's Trainer",
    "accelerate": "accelerate",
    "nanogpt": "nanoGPT",
    "torchrun": "torchrun",
}
"""Sections of the page with commands, by the names of frameworks in `checkpoints.OPTIONS`."""
PATIENCE = 900
"""Seconds for four ranks to import a framework on a machine that does a hundred other things."""
SETTINGS = ("environment.env.HF_HUB_OFFLINE=1", "environment.env.OMP_NUM_THREADS=1")


def sections() -> dict[str, str]:
    """The page's sections, by their headings; the text before the first is that of no heading."""
    first, *others = re.split(r"(?m)^## ", PAGE.read_text(encoding="utf-8"))
    return {"": first, **{section.partition("\n")[0]: section for section in others}}


def commands(framework: str) -> list[str]:
    """The lines of a framework's section that submit something, in turn; with none, those of all other sections."""
    shown = sections()
    titles = [SECTIONS[framework]] if framework else [title for title in shown if title not in SECTIONS.values()]
    return re.findall(r"(?m)^ *(serried (?:submit|run) .*)$", "".join(shown[title] for title in titles))


def submit(
    place: Place,
    framework: str,
    number: int = 0,
    *,
    program: str | bytes,
    leaves: bool = False,
    options: Sequence[str] = (),
    arguments: str = "",
) -> str:
    """As that command of the section says, with more options and arguments after its own.

    `program` is a script of `tests/frameworks`, or what is in one. `leaves`: it leaves as it should, by itself.
    """
    words = shlex.split(commands(framework)[number])
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
