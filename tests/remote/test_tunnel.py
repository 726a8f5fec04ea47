"""`serried tunnel` on a laptop, to a node behind a real sshd that forwards nothing: the lab's Slurm is behind it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sshd import Sshd

from command_line import here
from serried.lab.lab import Lab
from serried.remote import link
from tunnelled import JUPYTERLAB, SERVER, OpenTunnel, content, digest, digest_through, received

pytestmark = [pytest.mark.slurm, pytest.mark.runs]


@pytest.fixture
def fir(make_sshd: Callable[..., Sshd], lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sshd:
    """The login node of the cluster `beech`. The current folder is a project on the laptop."""
    far = make_sshd("fir", DisableForwarding="yes", AllowTcpForwarding="no")
    exported = (f"export {name}={shlex.quote(value)}\n" for name, value in lab.variables.items())
    (far.home / ".bash_profile").write_text("".join(exported))
    config = Path(os.environ["XDG_CONFIG_HOME"], "serried", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text(f'[clusters.beech]\nlogin = "fir"\nroot = "{far.home}/runs"\nmatch.hostname = ["fir-login*"]\n')
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    link.sign_in("beech", "fir")
    return far


@pytest.fixture
def tunnel() -> Iterator[Callable[..., OpenTunnel]]:
    opened = []

    def tunnel(*arguments: str) -> OpenTunnel:
        opened.append(OpenTunnel(*arguments, directory=Path.cwd(), environ=os.environ))
        return opened[-1]

    yield tunnel
    for each in opened:
        each.close()


def test_a_port_of_a_node_is_reached_from_the_laptop_until_the_run_ends_or_the_connection_breaks(
    fir: Sshd, tunnel: Callable[..., OpenTunnel], wait_until: Callable[..., object]
) -> None:
    Path("server.py").write_text(SERVER)
    words = ("--cluster", "beech", "--time", "5m", "--ranks", "1", "--cpus", "1", "--mem", "200M")
    run = here("submit", *words, "--", "/usr/bin/python3", "server.py", "0").stdout.strip()
    (log,) = wait_until(lambda: [path for path in fir.home.glob("runs/**/rank-0.log") if "port" in path.read_text()])
    port = log.read_text().split()[1]
    through = tunnel("last", f"0:{port}")
    assert (through.facts["run"], through.facts["port"]) == (run, int(port))
    large = content(100_000_000)
    with through.connect() as idle:
        assert digest_through(through, large) == digest(large)
        idle.sendall(b"send 5000000\n")
        assert received(idle) == b"0123456789" * 500_000
    other = tunnel(run, f"0:{port}")
    fir.cut()
    assert (through.end(), other.end()) == (4, 4)
    broken = "error: the connection to `beech` broke, and its tunnel with it\n"
    assert broken in through.said
    closed, again = tunnel(run, f"0:{port}"), tunnel(run, f"0:{port}")
    closed.process.send_signal(signal.SIGINT)
    assert closed.end() == 130
    assert closed.said.splitlines()[-1] == "note: closed the tunnel; the run continues"
    assert "Traceback" not in closed.said
    assert digest_through(again, b"again") == digest(b"again")
    assert here("stop", "-y", run).returncode == 0
    assert again.end() == 0
    assert again.said.endswith(f"closed the tunnel: run `{run}` has ended, CANCELLED\n")
    ended = here("tunnel", run, f"0:{port}")
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (2, f"error: run `{run}` has ended: it is CANCELLED")


@pytest.mark.usefixtures("fir")
def test_a_notebook_from_the_laptop_comes_back_with_fetch() -> None:
    Path("jupyterlab.py").write_text(JUPYTERLAB)
    words = ("--cluster", "beech", "--cpus", "1", "--mem", "500M", "--time", "5m")
    venv = ("--set", f"environment.venv={sys.prefix}")
    notebook = OpenTunnel(*words, *venv, directory=Path.cwd(), environ=os.environ, command="notebook")
    assert notebook.get() == 200
    assert here("stop", "-y", "last").returncode == 0
    assert notebook.end() == 0
    notebook.close()
    assert here("fetch", "last", "--to", "back").returncode == 0
    assert Path("back/new.ipynb").read_text() == "{}"
