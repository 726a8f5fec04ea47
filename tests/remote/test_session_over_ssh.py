"""Sessions over a real sshd, with the login shells that users have."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

from serried.base.errors import SerriedError
from serried.remote import link, project
from serried.remote.client import FarEndUnusable, RemoteRequest, RemoteSession
from waiting import until


@pytest.fixture
def signed_in(make_sshd, clock, laptop):  # noqa: ARG001 - the clock lets connections follow each other at once
    """Starts a login node, and returns it with a session."""

    def make(**options):
        far = make_sshd("fir", **options)
        link.sign_in("fir", "fir")
        return far, RemoteSession("fir", "fir", environ=laptop, pause=lambda _seconds: None)

    return make


def call(session, line, *, changes, on_output=lambda _part: None):
    """Status and output of a line for `sh`."""
    output = bytearray()

    def write(part):
        output.extend(part)
        on_output(part)

    status = session.call(RemoteRequest((), {}, changes, shell=line), on_output=write, on_errors=output.extend)
    return status, output.decode()


STARTUP = {
    "bash": (".bash_profile", "export SITE=beech"),
    "fish": (".config/fish/config.fish", "set -x SITE beech"),
    "tcsh": (".tcshrc", "setenv SITE beech"),
    "zsh": (".zprofile", "export SITE=beech"),
}


@pytest.mark.parametrize("shell", STARTUP)
def test_a_request_has_the_environment_of_the_login_shell(shell, signed_in):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell}: apt-get install {shell}")
    far, session = signed_in(shell=program)
    name, line = STARTUP[shell]
    (far.home / name).parent.mkdir(parents=True, exist_ok=True)
    (far.home / name).write_text(f"echo welcome\n{line}\n")
    with session:
        assert call(session, 'echo "$SITE $HOME"', changes=True) == (0, f"beech {far.home}\n")


def test_a_submit_goes_on_when_its_connection_is_lost_and_runs_once(signed_in):
    far, session = signed_in()
    release = far.home / "release"
    line = 'echo x >>"$HOME/started"; echo begun; until [ -e "$HOME/release" ]; do sleep 0.1; done; echo ended; exit 3'

    def cut(part):
        if b"begun" in part:
            far.cut()
            release.touch()

    with session:
        assert call(session, line, changes=True, on_output=cut) == (3, "begun\nended\n")
    assert (far.home / "started").read_text() == "x\n"


def test_a_reading_request_ends_with_its_connection(signed_in):
    far, session = signed_in()
    line = 'echo $$ >"$HOME/pid"; echo begun; exec sleep 600'
    with session, pytest.raises(link.NotConnected):
        call(session, line, changes=False, on_output=lambda _part: far.cut())
    far.inside(f"until ! kill -0 $(cat {far.home}/pid); do sleep 0.1; done; touch {far.home}/ended")
    until((far.home / "ended").exists)


def test_a_long_stream_arrives_whole(signed_in):
    _, session = signed_in()
    with session:
        status, output = call(session, "seq 300000", changes=False)
    assert (status, output) == (0, "".join(f"{number}\n" for number in range(1, 300_001)))


def test_nothing_stays_over_there(signed_in):
    far, session = signed_in()
    with session:
        call(session, "true", changes=True)
    far.inside(f"until ! pgrep -f 'python.*-I -S'; do sleep 0.1; done; touch {far.home}/gone")
    until((far.home / "gone").exists)
    assert sorted(entry.name for entry in far.home.iterdir()) == [".cache", ".ssh", "gone"]


@pytest.mark.parametrize("limit", ["size=300k", "nr_inodes=40"])
def test_a_full_quota_is_named_and_leaves_nothing(limit, signed_in):
    far, session = signed_in()
    cache = far.home / ".cache"
    far.mount(cache, limit)
    with session, pytest.raises(FarEndUnusable) as raised:
        call(session, "true", changes=True)
    assert str(raised.value).startswith(f"no space for Serried on `fir`: {cache}/serried/far")
    assert far.answer(f"ls -A {cache}/serried/far") == ""


@pytest.mark.parametrize("limit", ["size=20m", "nr_inodes=1500"])
def test_a_disk_that_is_full_for_a_project_is_named_and_the_next_try_continues(limit, signed_in, tmp_path):
    far, session = signed_in()
    far.mount(far.home / ".cache", limit)
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "serried.toml").write_text("")
    for number in range(1500):
        (folder / f"data{number}").write_bytes(os.urandom(12_000))
    sent = project.survey(folder, os.environ)
    with session:
        with pytest.raises(SerriedError) as raised:
            project.send(session, sent)
        assert raised.value.message.startswith("cannot store the project on the cluster: ")
        assert raised.value.message.endswith("no space left on device")
        assert raised.value.hint == "free some space there; `XDG_CACHE_HOME` may name a folder with more"
        far.answer(f"mount -o remount,size=200m,nr_inodes=20000 {far.home}/.cache")
        place = project.send(session, sent)
        request = RemoteRequest((), {}, True, directory=place, shell="cat data* | sha256sum")
        output = bytearray()
        assert session.call(request, on_output=output.extend, on_errors=output.extend) == 0
    there = b"".join((folder / name).read_bytes() for name in sorted(f"data{number}" for number in range(1500)))
    assert output.decode().split()[0] == hashlib.sha256(there).hexdigest()


def test_a_disk_that_is_full_for_a_request_starts_nothing_or_keeps_its_exit_status(signed_in):
    far, session = signed_in()
    cache = far.home / ".cache"
    far.mount(cache, "size=30m")
    line = 'echo started >>"$HOME/started"; seq 300000; exit 5'
    with session:
        assert call(session, "true", changes=True) == (0, "")
        far.answer(f"cat /dev/zero >{cache}/fill")
        with pytest.raises(FarEndUnusable) as raised:
            call(session, line, changes=True)
        assert raised.value.message.startswith(f"fir: {cache}/serried/requests/")
        assert raised.value.message.endswith(": No space left on device")
        assert not (far.home / "started").exists()
        far.answer(f"truncate -s -400k {cache}/fill")
        status, output = call(session, line, changes=True)
    assert (status, output[:4], (far.home / "started").read_text()) == (5, "1\n2\n", "started\n")
    assert len(output) < 400_000  # the rest was lost


def test_a_home_that_forbids_programs_is_enough(signed_in):
    far, session = signed_in()
    home = shlex.quote(str(far.home))
    assert far.answer(f"mount --bind {home} {home} && mount -o remount,bind,noexec {home}") == ""
    (far.home / "program").write_text("#!/bin/sh\n")
    (far.home / "program").chmod(0o755)
    with session:
        assert call(session, "$HOME/program", changes=False)[0] == 126
        request = RemoteRequest(("--version",), {}, True)
        assert session.call(request, on_output=len, on_errors=len) == 0


def test_a_login_node_behind_another_is_reached_through_it(make_sshd, clock, laptop):  # noqa: ARG001
    gate, far = make_sshd("gate"), make_sshd("fir")
    far.ssh_config.write_text(f"{far.ssh_config.read_text()}  ProxyJump gate\n")
    link.sign_in("fir", "fir")
    with RemoteSession("fir", "fir", environ=laptop) as session:
        assert call(session, "uname -n", changes=True) == (0, "fir-login1\n")
    assert (gate.connections, far.connections) == (1, 1)
    link.sign_out("fir")
    far.stop()
    with pytest.raises(link.NotConnected) as raised:
        link.check("fir", "fir")
    assert raised.value.code in ("unreachable", "closed")


@pytest.mark.parametrize("shift", ["+1h", "-1h"])
def test_a_clock_that_is_an_hour_off_changes_nothing(shift, make_sshd, clock, laptop, tmp_path):  # noqa: ARG001
    (library,) = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")] or pytest.skip("apt-get install libfaketime")
    far = make_sshd("fir", SetEnv=f"LD_PRELOAD={library} FAKETIME={shift}")
    far.mount(Path("/dev/shm"), "size=1m")  # where libfaketime meets itself
    link.sign_in("fir", "fir")
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits/serried.toml").write_text("")
    with RemoteSession("fir", "fir", environ=laptop) as session:
        ahead = int(call(session, "date +%s", changes=True)[1]) - time.time()
        kept = session.ask("terminal", {"request": {"shell": "true"}})["words"][-1]
        for text in ("one", "two"):
            (tmp_path / "digits/a").write_text(text)
            place = project.send(session, project.survey(tmp_path / "digits", os.environ))
            output = bytearray()
            request = RemoteRequest((), {}, True, directory=place, shell="cat a")
            session.call(request, on_output=output.extend, on_errors=output.extend)
            assert output == text.encode()
        assert (round(abs(ahead) / 600), Path(kept).exists(), far.connections) == (6, True, 1)


def test_another_login_node_of_the_same_home_goes_on_with_a_request_and_passes_ctrl_c_on(make_sshd, clock, laptop):  # noqa: ARG001
    first = make_sshd("fir1")
    second = make_sshd("fir2", home=first.home)
    for host in ("fir1", "fir2"):
        link.sign_in(host, host)
    hosts = iter(["fir1", "fir2"])

    def connect(_cluster, _host, command):
        host = next(hosts)
        return link.connect(host, host, command)

    def on_output(part):
        if b"begun" in part:
            first.cut()
            (first.home / "release").touch()
        if b"again" in part:
            os.kill(os.getpid(), signal.SIGINT)

    wait = 'until [ -e "$HOME/release" ]; do sleep 0.1; done'
    line = f"trap 'uname -n; exit 7' INT; echo begun; {wait}; echo again; while :; do sleep 0.1; done"
    with RemoteSession("fir", "fir", connect=connect, environ=laptop, pause=lambda _seconds: None) as session:
        done = call(session, line, changes=True, on_output=on_output)
    assert (done, list(hosts)) == ((7, "begun\nagain\nfir1-login1\n"), [])
    assert second.connections > 0
