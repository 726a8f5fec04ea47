"""Sessions over a real sshd, with the login shells that users have."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from serried.remote import link
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
    cache.mkdir()
    far.inside(f"mount -t tmpfs -o {limit},mode=0700 none {cache}; touch {far.home}/mounted")
    until((far.home / "mounted").exists)
    with session, pytest.raises(FarEndUnusable) as raised:
        call(session, "true", changes=True)
    far.inside(f"ls -A {cache}/serried/far >{far.home}/left; touch {far.home}/listed")
    until((far.home / "listed").exists)
    assert str(raised.value).startswith(f"no space for Serried on `fir`: {cache}/serried/far")
    assert (far.home / "left").read_text() == ""


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
