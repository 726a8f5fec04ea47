"""`serried watch --web` as its user starts it: what it prints, who can connect, and how it ends."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import stat
import subprocess
import sys

import pytest

from serried.base.errors import install_hint
from serried.cli import web_page
from serried.views import web
from waiting import until


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


@pytest.fixture
def start(tmp_path):
    started = []

    def begin(*arguments):
        errors = (tmp_path / "stderr").open("w")
        argv = [sys.executable, "-m", "serried", "watch", "--web", *arguments]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True)
        errors.close()
        started.append(process)
        printed = [process.stdout.readline().strip() for _ in range(2)]
        assert printed[1].startswith("http://"), (tmp_path / "stderr").read_text()
        return process, *printed

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def ask(connection, token=""):
    connection.request("GET", "/api/runs", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_it_prints_how_to_reach_it_and_ends_on_ctrl_c(start, tmp_path):
    process, tunnel, address = start()
    port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#token=([\w-]{32})&/", address).groups()

    assert tunnel.startswith(f"ssh -N -L {port}:127.0.0.1:{port} ")
    assert ask(http.client.HTTPConnection("127.0.0.1", int(port), timeout=60))[0] == 403
    expected = (200, '{"schema":1,"runs":[],"total":0,"notice":""}')
    assert ask(http.client.HTTPConnection("127.0.0.1", int(port), timeout=60), token) == expected
    process.send_signal(signal.SIGINT)
    assert process.wait(600) == 130
    said = (tmp_path / "stderr").read_text()
    assert "stopped" in said
    assert "Traceback" not in said
    assert token not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_removes_the_socket(start, tmp_path, number):
    path = tmp_path / "it's a socket"
    process, tunnel, _ = start("--socket", str(path))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f":{path}" in tunnel.replace("'\"'\"'", "'")
    assert ask(UnixConnection(str(path)))[0] == 403
    process.send_signal(number)
    assert process.wait(600) == 128 + number
    assert not path.exists()


@pytest.mark.usefixtures("_real_processes")
def test_a_dead_socket_is_replaced_and_one_in_use_is_not(start, tmp_path, serried):
    path = tmp_path / "ui.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    start("--socket", str(path))
    again = serried("watch", "--web", "--socket", str(path))
    assert (again.code, again.err.splitlines()[0]) == (2, f"error: cannot listen on `{path}`: address already in use")
    assert path.exists()


def test_a_socket_is_reached_by_the_address_that_its_user_came_by(start, tmp_path, monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.7 51234 127.0.0.1 2222")
    _, tunnel, _ = start("--socket", str(tmp_path / "ui.sock"))
    assert re.fullmatch(rf"ssh -N -L \d+:{tmp_path}/ui.sock -p 2222 .+@127\.0\.0\.1", tunnel)


def test_without_an_output_it_serves_until_a_signal(tmp_path):
    path = tmp_path / "ui.sock"
    argv = [sys.executable, "-m", "serried", "watch", "--web", "--socket", str(path)]
    process = subprocess.Popen(["bash", "-c", 'exec "$@" >&-', "bash", *argv])
    try:
        until(path.is_socket)
        until(lambda: ask(UnixConnection(str(path)))[0] == 403)
        process.terminate()
        assert process.wait(600) == 128 + signal.SIGTERM
    finally:
        process.kill()


def test_a_taken_port_is_an_error(serried):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serried("watch", "--web", "--port", str(port))
    message = f"error: cannot listen on port {port}: address already in use"
    hint = "hint: leave out `--port`, and Serried takes a free one"
    assert (done.code, done.err) == (2, f"{message}\n\n{hint}\n")


def test_without_its_libraries_it_says_how_to_install_them(serried, monkeypatch):
    monkeypatch.delattr(web, "server", raising=False)
    monkeypatch.setitem(sys.modules, "serried.views.web.server", None)
    done = serried("watch", "--web")
    assert (done.code, done.err.partition("hint: ")[2]) == (2, f"{install_hint('ui')}\n")


def test_the_usual_port_depends_on_the_user_alone():
    assert web_page.usual_port() == 20_000 + os.getuid() % 10_000
