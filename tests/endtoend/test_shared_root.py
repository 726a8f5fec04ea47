"""Two members of a group and a stranger, with a root that the group shares."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import serried

MEMBERS, STRANGERS = 54300, 54400
USERS = {"ada": (54301, MEMBERS), "bob": (54302, MEMBERS), "eve": (54303, STRANGERS)}
PYTHONS = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
SOURCE = Path(serried.__file__).parents[1]
PACKAGES = sysconfig.get_path("purelib")
TRAIN = """
import os, pathlib, sys
print("hello, key", len(os.environ["KEY"]), flush=True)
pathlib.Path(sys.argv[1], "a.csv").write_text("1,2\\n")
"""


def can_read(path: str) -> bool:
    """Whether all users can read a file or folder, below folders that all can enter."""
    real = Path(path).resolve()
    return real.exists() and all(folder.stat().st_mode & stat.S_IXOTH for folder in (real, *real.parents))


PYTHON = next((python for python in PYTHONS if can_read(python)), None)
pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become several users: sudo pytest"),
    pytest.mark.skipif(
        PYTHON is None or not can_read(str(SOURCE)) or not can_read(PACKAGES),
        reason=f"other users cannot run {sys.executable}: apt-get install python3.{sys.version_info.minor}",
    ),
]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that all can enter, unlike pytest's, with a home for each user."""
    folder = Path(tempfile.mkdtemp(prefix="serried-shared-", dir="/tmp"))
    folder.chmod(0o755)
    root = folder / "root"
    root.mkdir()
    os.chown(root, 0, MEMBERS)
    root.chmod(0o3770)
    profile = f'[clusters.local]\nroot = "{root}"\n'
    project = '[project]\nname = "digits"\nshare = "group"\n[defaults.environment]\nsecrets = ["KEY"]\n'
    for user, (uid, gid) in USERS.items():
        home = folder / user
        for name, text in ((".config/serried/config.toml", profile), ("p/serried.toml", project), ("p/t.py", TRAIN)):
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        subprocess.run(["chown", "-R", f"{uid}:{gid}", home], check=True)
        home.chmod(0o700)
    yield folder
    shutil.rmtree(folder)


def as_user(user: str, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    uid, gid = USERS[user]
    assert PYTHON is not None
    return subprocess.run(
        [PYTHON, "-m", "serried", *words],
        cwd=place / user / "p",
        env={
            "HOME": str(place / user),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{SOURCE}:{PACKAGES}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "KEY": f"the secret of {user}",
            "TMPDIR": str(place / user),
        },
        user=uid,
        group=gid,
        extra_groups=[],
        umask=0o077,
        capture_output=True,
        text=True,
        check=False,
    )


def test_members_read_each_others_runs_and_nobody_else_does(place: Path) -> None:
    words = (
        "submit",
        "--cluster",
        "local",
        "--ranks",
        "2",
        "--gpus",
        "0",
        "--wait",
        "-y",
        "--",
        str(PYTHON),
        "t.py",
        "{results}",
    )
    submitted = {user: as_user(user, place, *words) for user in ("ada", "bob")}
    assert [done.returncode for done in submitted.values()] == [0, 0], submitted
    run, other = (done.stdout.strip() for done in submitted.values())
    listed = json.loads(as_user("bob", place, "ps", "--user", "all", "--json").stdout)["runs"]
    assert {each["id"]: each["user"] for each in listed} == {run: str(USERS["ada"][0]), other: None}

    before = states(place / "root")
    logs = as_user("bob", place, "logs", run)
    assert (logs.returncode, sorted(logs.stdout.splitlines())) == (0, [f"[{rank}] hello, key 17" for rank in (0, 1)])
    assert [as_user("bob", place, word, run).returncode for word in ("show", "why", "report", "wait")] == [0] * 4
    assert as_user("bob", place, "fetch", run, "--to", str(place / "bob" / "copy")).returncode == 0
    assert (place / "bob/copy/a.csv").read_text() == "1,2\n"
    refused = as_user("bob", place, "stop", run)
    assert (refused.returncode, "works only on your own runs" in refused.stderr) == (2, True)
    assert states(place / "root") == before

    assert as_user("eve", place, "ps", "--user", "all").stderr.startswith("no runs ")
    assert as_user("eve", place, "show", run).stderr.startswith(f"error: unknown run: `{run}`")
    readable = [path for path in (place / "root").rglob("*") if path.is_file() and path.stat().st_mode & stat.S_IRGRP]
    assert not [path for path in readable if b"the secret of" in path.read_bytes()]
    assert not [path for path in (place / "root").rglob("*") if path.stat().st_mode & stat.S_IRWXO]


def states(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")}
