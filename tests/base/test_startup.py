"""What each Python process of a rank does first."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

from serried.base import startup
from serried.schema import names

PROGRAM = """
import sys
print("step", 3)
print("half", end="", flush=True)
print(" a line", file=sys.stderr)
"""


def test_ranks_that_share_a_log_write_each_line_at_once(tmp_path):
    assert startup.LOG_SHARED == names.LOG_SHARED
    shutil.copy(startup.__file__, tmp_path / "sitecustomize.py")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps the bounds of writes
    variables = {"PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1", startup.LOG_SHARED: "1"}
    with ours, theirs:
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env={**os.environ, **variables}, stdout=theirs, stderr=theirs, check=True
        )
        theirs.close()
        assert list(iter(lambda: ours.recv(100), b"")) == [b"step 3\n", b"half", b" a line\n"]


def test_the_libraries_of_a_run_inside_another_hide_no_module_of_the_environment_and_do_not_recur(tmp_path):
    for run in ("inner", "outer"):
        (tmp_path / run / "library.zip").mkdir(parents=True)
        shutil.copy(startup.__file__, tmp_path / run / "library.zip" / "sitecustomize.py")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('the hidden one')")
    path = os.pathsep.join(map(str, [*tmp_path.glob("*/library.zip"), tmp_path / "site"]))
    done = subprocess.run(
        [sys.executable, "-c", "1"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("the hidden one\n", "")
