"""Kinds of values that say which container, and what it sees."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from serried.config.values import BadValue, Kind, text, texts
from serried.errors import did_you_mean

APPTAINER, CHARLIECLOUD, PYXIS = "apptainer", "charliecloud", "pyxis"
RUNTIMES = {"apptainer": APPTAINER, "singularity": APPTAINER, "ch-run": CHARLIECLOUD, "pyxis": PYXIS}
"""By the program's name, whose way to be told."""


def image(value: Any) -> str:
    """Empty where there shall be none."""
    return "" if value is False or value == "off" else text(value)


def runtime(value: Any) -> str:
    """A runtime's name, or the path of its program: absolute, as what a node has is not in the project."""
    said = text(value)
    name = PurePath(said).name
    if name not in RUNTIMES or (said != name and (name == PYXIS or said[0] not in "/~$")):
        known = ", ".join(f"`{name}`" for name in RUNTIMES)
        raise BadValue(f"must be one of {known} or an absolute path that ends so, not `{said}`",
                       did_you_mean(name, list(RUNTIMES)))  # fmt: skip
    return said


def is_reference(image: str, runtime: str | None = None) -> bool:
    """Whether it names an image somewhere else, and is no path: `docker://…`, and most of what pyxis is told."""
    if re.match(r"[a-z][a-z0-9+.-]*://", image):
        return True
    return runtime == PYXIS and image[0] not in "/~$." and not image.endswith((".sqsh", ".sqfs"))


IMAGE = Kind("path, `docker://…`, or `off`", image)
RUNTIME = Kind("`apptainer`, `singularity`, `ch-run`, the path of one, or `pyxis`", runtime)
BINDS = Kind("text or list of `/source:/destination:ro`", texts, many=True, show=", ".join)
