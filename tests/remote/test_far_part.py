"""The far part on the Pythons that a login node may have."""

from __future__ import annotations

import subprocess
import sys

import pytest
from local_shell import LoginNode

import pythons
from serried.remote.client import RemoteRequest, RemoteSession

IMPORT_ALL = """
import importlib, pathlib, sys
far = pathlib.Path(sys.argv[1])
sys.path[:0] = map(str, [far, far / "before311"])
for path in sorted(far.glob("serried/**/*.py")):
    name = ".".join(path.relative_to(far).with_suffix("").parts).replace(".__init__", "")
    if name.count(".") < 3 or ".templates." not in name:
        try:
            None if path.stem in ("__main__", "main") else importlib.import_module(name)
        except ModuleNotFoundError as error:
            print(error.name)
"""
EXTRAS = {"torch", "transformers", "rich", "starlette", "uvicorn", "matplotlib", "optuna"}


@pytest.fixture(params=pythons.interpreters())
def python(request, tmp_path):
    """A folder for PATH with one Python."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(request.param)
    return tmp_path / "bin"


@pytest.mark.skipif(sys.platform != "linux", reason="a login node is Linux")
def test_every_module_can_be_imported_over_there(python, tmp_path, laptop):
    node = LoginNode(tmp_path / "home", PATH=f"{python}:/usr/bin:/bin")
    with RemoteSession("fir", "fir", connect=node.connect, environ=laptop) as session:
        request = RemoteRequest(("clusters",), {}, changes=False)
        output, errors = bytearray(), bytearray()
        assert session.call(request, on_output=output.extend, on_errors=errors.extend) == 0, errors.decode()
    (far,) = (node.home / ".cache/serried/far").iterdir()
    program = [python / "python3", "-I", "-c", IMPORT_ALL, far]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (set(done.stdout.split()) - EXTRAS, done.stderr) == (set(), "")
