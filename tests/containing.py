"""Real container runtimes, and the smallest image that runs this very Python: all but /etc is the host's, bound in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

PREFIX = Path(__file__).parents[1] / ".venv-apptainer"
"""Where `make containers` puts Apptainer, or says in `problem` why it could not."""

MARK = "/etc/serried-image"
"""Is in the image alone."""


def path_with(program: str) -> str:
    """A PATH that has `program`; where there is none the test is skipped, and with CI=true it fails.

    But not where Debian's newest suite has no Apptainer just now: that is told, and Charliecloud shows the same.
    """
    path = os.pathsep.join([os.environ["PATH"], str(PREFIX / "bin")])
    if shutil.which(program, path=path):
        return path
    problem = PREFIX / "problem"
    if problem.exists():
        pytest.skip(f"{program} cannot be had: {problem.read_text().strip()}")
    reason = f"{program} is not installed: make containers"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def skeleton(folder: Path) -> Path:
    """A folder as image."""
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "root", "home", "var/tmp", "opt", "mnt", "run", "srv"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (folder / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", folder / "etc")
    (folder / MARK.lstrip("/")).write_text("inside\n")
    (folder / "ch").mkdir()
    (folder / "ch" / "environment").write_text('no-name=x\nOF_THE_IMAGE=it\'s "here" $(id)')  # as ch-convert leaves it
    return folder


def build(rootfs: Path, image: Path, path: str) -> Path:
    """A .sif of it."""
    subprocess.run(
        ["apptainer", "build", str(image), str(rootfs)],
        env={**os.environ, "PATH": path},
        check=True,
        capture_output=True,
    )
    return image


def needed() -> list[str]:
    """What an image of these has to have bound in for this Python."""
    prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    return ["/usr", *sorted({sys.prefix, *prefixes} - {"/usr"})]


def table(name: str, values: Mapping[str, object]) -> str:
    """A table of serried.toml."""
    return f"[{name}]\n" + "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()
    )
