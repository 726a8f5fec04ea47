"""How the agents import: each call may be a round trip to a file system that thousands of nodes share."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

from serried.submission import script

PROGRAM = """
import re, runpy, sys
archive, role = sys.argv[1:]
opened, compiled, compile_ = [], [], re.compile
def count(*arguments):
    compiled.append(sys._getframe(1).f_globals["__name__"])
    return compile_(*arguments)
re.compile = count
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
sys.argv[:] = sys.argv[1:]
try:
    runpy.run_path(archive, run_name="__main__")
except (KeyError, ValueError):  # it imports all that it needs, and then lacks a run directory or arguments
    pass
own = [name for name in sys.modules if name.partition(".")[0] == "serried"]
loaders = {type(sys.modules[name].__loader__).__name__ for name in own}
patterns = sum(name.partition(".")[0] == "serried" for name in compiled)
print(opened.count(archive), len(own), len(sys.modules), patterns, *loaders)
"""


@pytest.fixture
def agent(tmp_path):
    path = tmp_path / "agent.pyz"
    path.write_bytes(script.agent().read())
    return path


def started(agent, role):
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM, agent, role]
    *counts, loader = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return *map(int, counts), loader


@pytest.mark.parametrize(("role", "own", "loaded"), [("head", 50, 141), ("node", 59, 150), ("finish", 46, 131)])
def test_a_role_imports_what_it_needs_from_one_open_file(agent, role, own, loaded):
    opened, modules, all_modules, patterns, loader = started(agent, role)

    # Python itself reads the archive's directory, its main module twice, and then leaves it to ours.
    assert (opened, loader) == (4, "ArchiveModules")
    assert modules <= own
    assert all_modules <= loaded
    assert patterns == 0  # to compile a regular expression takes as long as to load a module


def test_a_python_that_does_not_know_the_byte_code_compiles_the_source(agent, monkeypatch):
    monkeypatch.setattr(script.importlib.util, "MAGIC_NUMBER", b"\0\0\r\n")
    agent.write_bytes(script.agent().read())

    opened, *_, loader = started(agent, "node")
    assert (opened, loader) == (6, "ArchiveModules")


def test_a_traceback_has_lines_of_the_source(agent):
    done = subprocess.run(
        [sys.executable, "-I", "-S", agent, "node"], env={}, check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "KeyError: 'SERRIED_RUN_DIR'")
    with zipfile.ZipFile(agent) as packed:
        source = packed.read("serried/agent/node.py").decode().splitlines()
    [line] = [line for line in source if "attempt = Attempt.load(run_directory()" in line]
    assert line.strip() in done.stderr
