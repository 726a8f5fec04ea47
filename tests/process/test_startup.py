"""What each Python process of a rank does first."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

from serried.process import startup
from serried.protocol import names

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
