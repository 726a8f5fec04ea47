"""Clusters that allow one session for each connection."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sshd import CODES, PASSWORD, SECOND_FACTOR, at_terminal

from serried.base.errors import NotConnected
from serried.remote import link
from serried.remote.client import RemoteRequest, RemoteSession
from waiting import until

SIGN_IN = "from serried.remote import link; print(link.sign_in('fir', 'fir').mode)"
FACTORS = (("Password: ", PASSWORD), ("OATH", CODES[0]))


def call(session, line, *, changes=False):
    output = bytearray()
    status = session.call(RemoteRequest((), {}, changes, shell=line), on_output=output.extend, on_errors=output.extend)
    return status, output.decode()


def test_commands_share_the_one_session_of_a_login_with_a_second_factor(make_sshd, laptop):
    far = make_sshd(MaxSessions=1, **SECOND_FACTOR)
    status, shown = at_terminal([sys.executable, "-c", SIGN_IN], *FACTORS)
    assert (status, shown.splitlines()[-1]) == (0, "session")
    sessions = [RemoteSession("fir", "fir", environ=laptop) for _ in range(2)]
    with sessions[0] as one, sessions[1] as other:
        assert [call(one, "echo 1; exit 3"), call(other, "echo 2"), call(one, "echo 3", changes=True)] == [
            (3, "1\n"),
            (0, "2\n"),
            (0, "3\n"),
        ]
    assert link.check("fir", "fir").mode == "session"
    assert far.connections == 2  # the first one without prompts
    link.sign_out("fir")
    with pytest.raises(NotConnected) as error:
        link.check("fir", "fir")
    assert error.value.message == "not connected to `fir`"


def test_a_session_that_is_lost_is_opened_again_where_keys_suffice(make_sshd, laptop, clock):
    far = make_sshd(MaxSessions=1)
    assert link.sign_in("fir", "fir", may_prompt=False).mode == "session"
    with RemoteSession("fir", "fir", environ=laptop, pause=lambda _: None) as session:
        assert call(session, "echo before") == (0, "before\n")
        far.cut()
        clock.passed += 60
        assert call(session, "echo after", changes=True) == (0, "after\n")
    assert far.connections == 2


def test_a_session_that_does_not_answer_is_dead(make_sshd, laptop):
    far = make_sshd(MaxSessions=1)
    link.sign_in("fir", "fir", may_prompt=False)
    with RemoteSession("fir", "fir", environ=laptop) as session:
        assert call(session, "echo before") == (0, "before\n")
    far.freeze()
    with pytest.raises(NotConnected) as error:
        link.check("fir", "fir")
    assert (error.value.message, error.value.hint) == ("the connection to `fir` is dead", "serried login fir")


def test_what_a_command_has_begun_ends_with_it_but_not_what_changes_something(make_sshd, laptop):
    far = make_sshd(MaxSessions=1)
    link.sign_in("fir", "fir", may_prompt=False)
    program = (
        "from serried.remote.client import *; import sys\n"
        "with RemoteSession('fir', 'fir', environ={'XDG_CACHE_HOME': sys.argv[1]}) as session:\n"
        "    line = f'echo $$ > {sys.argv[3]}; ' + ('read answer' if sys.argv[2] == 'asks' else 'sleep 600')\n"
        "    asks, changes = sys.argv[2] == 'asks', sys.argv[2] != 'reads'\n"
        "    request = RemoteRequest((), {}, changes, (asks, False, False), shell=line)\n"
        "    session.call(request, stdin=sys.stdin.buffer, on_output=id, on_errors=id)"
    )
    kinds = ("reads", "asks", "changes")
    for kind in kinds:
        argv = [sys.executable, "-c", program, laptop["XDG_CACHE_HOME"], kind, far.home / kind]
        stdin = subprocess.PIPE if kind == "asks" else subprocess.DEVNULL
        with subprocess.Popen(argv, stdin=stdin) as command:
            until(lambda kind=kind: (far.home / kind).exists() and (far.home / kind).read_text().endswith("\n"))
            command.kill()
    reads, asks, changes = ((far.home / kind).read_text().strip() for kind in kinds)
    ended = f"while kill -0 {reads} || kill -0 {asks}; do sleep 0.1; done"
    far.inside(f"{ended}; kill -0 {changes} && touch {far.home}/lives")
    until((far.home / "lives").exists)
