"""library.zip: what a rank gets of Serried, whatever is installed where it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import serried
from pythons import interpreters
from serried.submission import script

SOURCE = Path(serried.__file__).parents[1]


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "a run" / "library.zip"
    path.parent.mkdir()
    path.write_bytes(script.library().read())
    return path


@pytest.fixture
def installed(tmp_path):
    """A folder where a Serried is installed whose training library is another one."""
    folder = tmp_path / "site-packages"
    shutil.copytree(SOURCE / "serried", folder / "serried", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("train", "base", "schema"):
        with (folder / "serried" / name / "__init__.py").open("a") as file:
            file.write("\nOTHER = True\n")
    return folder


@pytest.fixture
def say(tmp_path):
    """`say(program, *path)`: what a Python that finds Serried on `path` alone prints, and its exit status."""

    def run(program, *path, python=sys.executable, arguments=("-c",)):
        # -S: where Serried is installed for the tests is not on the path.
        prelude = ["-S", *arguments, program]
        libraries = [entry for entry in sys.path if entry.endswith("site-packages")] if python == sys.executable else []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, *libraries]))}
        done = subprocess.run(
            [python, *prelude], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
        )
        return done.returncode, done.stdout.strip() or done.stderr.strip().splitlines()[-1]

    return run


def test_it_is_the_same_bytes_each_time_and_holds_the_training_library_and_the_contract_and_nothing_else(library):
    assert library.read_bytes() == script.library().read()
    names = [name for name in zipfile.ZipFile(library).namelist() if name.endswith(".py")]
    rooms = {SOURCE / "serried" / room for room in ("base", "schema", "train")}
    expected = {path.relative_to(SOURCE).as_posix() for room in rooms for path in room.rglob("*.py")}
    assert set(names) == (expected - {"serried/schema/library_init.py"}) | {"serried/__init__.py", "sitecustomize.py"}


def start(library, folder, program, customize=None):
    """What Python prints with the library first on its path, and a `sitecustomize` behind it."""
    for name in ("behind", "node"):
        (folder / name).mkdir(exist_ok=True)
    if customize is not None:
        (folder / "behind" / "sitecustomize.py").write_text(customize)
    path = os.pathsep.join(map(str, [library, folder / "behind"]))
    own = {"SERRIED_STOP_FILE": str(folder / "node" / "stop"), "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}
    argv, environment = [sys.executable, "-c", program], {**os.environ, **own}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=240)
    return done.stdout, done.stderr


def test_a_rank_runs_the_sitecustomize_that_the_library_hides(library, tmp_path):
    program = "import sys; print(sorted(name for name in sys.modules if name.startswith('serried')))"
    assert start(library, tmp_path, program) == ("[]\n", "")
    program = "import sitecustomize, sys; print(sys.seen, sitecustomize.__file__, hasattr(sys, 'serried_stacks'))"
    said = f"sitecustomize {tmp_path}/behind/sitecustomize.py True\n"
    assert start(library, tmp_path, program, "import sys; sys.seen = __name__") == (said, "")
    out, err = start(library, tmp_path, "print(7)", "raise ValueError('its own')")
    assert (out, "ValueError: its own" in err) == ("7\n", True)


def test_a_rank_imports_the_library_of_its_run_though_another_is_installed(library, installed, say):
    program = "import serried.train as st; print(hasattr(st, 'OTHER'), st.__file__, st.identity().world_size)"
    assert say(program, library, installed) == (0, f"False {library}/serried/train/__init__.pyc 1")
    assert say(program, installed)[1].startswith("True ")


def test_the_command_serried_within_a_rank_is_the_installed_one_and_all_of_it(library, installed, say):
    status, said = say("--help", library, installed, arguments=("-m", "serried"))
    assert (status, "submit" in said) == (0, True), said
    program = "import serried.cli, serried.schema as c, serried.train as t; print(c.OTHER, t.OTHER)"
    assert say(program, library, installed) == (0, "True True")


def test_a_script_that_trains_and_submits_gets_the_rest_from_where_serried_is_installed(library, installed, say):
    names = (*serried.__all__, "__version__")
    program = (
        "import serried, serried.train as st; print(hasattr(st, 'OTHER'), serried.submit.__module__, "
        f"serried.RunFailed.__name__, [name for name in {names} if not hasattr(serried, name)])"
    )
    assert say(program, library, installed) == (0, "False serried.api RunFailed []")


def test_within_a_run_within_a_run_the_inner_library_counts(library, installed, say, tmp_path):
    outer = tmp_path / "outer.zip"
    outer.write_bytes(script.library().read())
    program = "import serried.train as st, serried.cli; print(st.__file__, serried.cli.__file__)"
    expected = f"{library}/serried/train/__init__.pyc {installed}/serried/cli/__init__.py"
    assert say(program, library, outer, installed) == (0, expected)


ELSEWHERE = "the run provides `serried.train` only, and Serried is not installed for this Python"


def test_a_missing_name_or_module_is_an_error_that_says_where_the_rest_is(library, say):
    for program, last_line in (
        ("serried; serried.submit", f"AttributeError: module 'serried' has no attribute 'submit': {ELSEWHERE}"),
        ("serried; serried.sumbit", "AttributeError: module 'serried' has no attribute 'sumbit'"),
        ("serried.nothing", "ModuleNotFoundError: No module named 'serried.nothing'"),
        ("serried.train as st; st.nothing", "AttributeError: module 'serried.train' has no attribute 'nothing"),
    ):
        status, said = say(f"import {program}", library)
        assert (status, said[: len(last_line)]) == (1, last_line)


def test_a_module_of_the_project_that_is_called_serried_stays_the_projects(library, say, tmp_path):
    (tmp_path / "serried.py").write_text("mine = 'the project\\'s own'\n")
    (tmp_path / "train.py").write_text("import serried; print(serried.mine)\n")
    assert say("train.py", library, arguments=()) == (0, "the project's own")


def test_each_python_can_read_all_of_it(library, say):
    """Without torch: what needs it is compiled, and the rest imported."""
    program = (
        "import sys, zipfile\n"
        "import serried.train as st, serried.train.checkpoints.writer, serried.train.data.sources\n"
        "from serried.train.configuration import config\n"
        "file = zipfile.ZipFile(sys.path[1])\n"
        "for name in file.namelist():\n"
        "    if name.endswith('.py'): compile(file.read(name), name, 'exec')\n"
        "print(st.identity().source, list(st.shard(range(5), rank=1, world_size=2)))"
    )
    for python in interpreters():
        assert (python, *say(program, library, python=python)) == (python, 0, "local [1, 3]")
