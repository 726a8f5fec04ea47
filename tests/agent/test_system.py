"""How the agent starts processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serried.agent import system
from tables import for_each

SOURCE = Path(__file__).parents[2] / "src"
ODD = b"caf\xe9 \xe2\x98\x83\n'"
"""Some of it UTF-8, some not."""

STARTS = """
import os
from serried.agent import system
word = os.environb[b"ODD"].decode("utf-8", "surrogateescape")
argv = ["/bin/sh", "-c", 'printf "%s|%s|%s" "$1" "$ODD" "$OWN"', "sh", word]
child = system.spawn(argv, {**system.environment(), "OWN": word}, (0, 1, 2))
os.waitpid(child.pid, 0)
"""


@for_each("locale", ["C", "C.UTF-8"])
def test_words_and_variables_arrive_byte_by_byte_whatever_the_locale_is(locale):
    environment = {b"LC_ALL": locale.encode(), b"PYTHONPATH": os.fsencode(SOURCE), b"ODD": ODD}
    argv = [sys.executable, "-X", "utf8=0", "-c", STARTS]

    said = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, check=True).stdout

    assert said == b"|".join([ODD] * 3)


@pytest.mark.parametrize(
    ("program", "directory", "problem"),
    [
        ("/bin/true", ".", None),
        ("/bin/true", "no such folder", ("directory", errno.ENOENT)),
        ("/no/such/program", ".", ("command", errno.ENOENT)),
        ("/etc/passwd", "/", ("command", errno.EACCES)),
    ],
)
def test_where_a_start_failed_is_told_apart(program, directory, problem, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    child = system.spawn([program], system.environment(), (0, 1, 2), directory=directory)

    _, status = os.waitpid(child.pid, 0)
    assert (child.problem(), os.waitstatus_to_exitcode(status)) == (problem, 127 if problem else 0)


def test_a_niced_process_has_its_low_priority_before_its_program_starts(tmp_path):
    with (tmp_path / "said").open("w+") as output:
        child = system.spawn(["nice"], system.environment(), (0, output.fileno(), 2), niceness=3)
        os.waitpid(child.pid, 0)
        output.seek(0)
        assert int(output.read()) == min(19, os.nice(0) + 3)
