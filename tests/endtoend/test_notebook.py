"""`serried notebook`, with a small program in the place of JupyterLab, and with JupyterLab where it is installed."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from place import Place
from tunnelled import JUPYTERLAB, OpenTunnel

SIZE = ("--cpus", "1", "--mem", "500M", "--time", "5m", "--set", f"environment.venv={sys.prefix}")


@pytest.fixture
def notebook(place: Place) -> Iterator[OpenTunnel]:
    if not importlib.util.find_spec("jupyterlab"):
        (place.project / "jupyterlab.py").write_text(JUPYTERLAB)
    words = ("--cluster", place.cluster, *SIZE)
    opened = OpenTunnel(*words, directory=place.project, environ=place.environ, command="notebook")
    yield opened
    opened.close()
    place.serried("stop", "-y", "--now", "last")


def test_a_notebook_is_opened_by_its_token_alone_and_opened_again(place: Place, notebook: OpenTunnel) -> None:
    token = notebook.facts["url"].partition("token=")[2]
    assert (notebook.get(), notebook.get("guessed")) == (200, 403)
    (run,) = [path.parent for path in place.project.parent.rglob("notebook-*/plan.json")] or [place.directory("last")]
    holders = [path for path in run.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert [(path.name, path.stat().st_mode & 0o777) for path in holders] == [("notebook.json", 0o600)]
    processes = Path("/proc").glob("[0-9]*/cmdline")
    assert not [path for path in processes if token.encode() in path.read_bytes()]
    assert "its time limit" in notebook.said
    notebook.process.send_signal(signal.SIGINT)
    assert notebook.end() == 130
    again = OpenTunnel("last", directory=place.project, environ=place.environ)
    assert (again.get(), again.facts["url"].endswith(token)) == (200, True)
    place.serried("stop", "-y", "last")
    assert again.end() == 0
    again.close()


def test_a_notebook_that_would_have_another_token_is_ended(local: Place) -> None:
    (local.project / "jupyterlab.py").write_text(JUPYTERLAB.replace('"token": token', '"token": ""'))
    done = local.serried("notebook", "--cluster", "local", *SIZE)
    assert (done.returncode, done.stdout) == (1, "")
    assert "  | another token is set: remove `token` from ~/.jupyter/jupyter_server_config.*\n" in done.stderr


def test_an_environment_without_jupyterlab_is_an_error_here_and_in_why(local: Place) -> None:
    if importlib.util.find_spec("jupyterlab"):
        pytest.skip("JupyterLab is installed")
    done = local.serried("notebook", "--cluster", "local", *SIZE)
    assert (done.returncode, done.stdout) == (1, "")
    assert "  | JupyterLab is not installed: " in done.stderr
    assert local.why("last")["state"] == "FAILED"
    named = local.serried("tunnel", local.submit("--time", "5m", "--", "sleep", "100"))
    assert (named.returncode, named.stderr.splitlines()[0].endswith("runs no notebook: name a port")) == (2, True)
    local.serried("stop", "-y", "--now", "last")
