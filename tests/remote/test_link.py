"""Connections to real login nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sshd import CODES, KEY_AND_CODE, PASSWORD, SECOND_FACTOR, at_terminal

from serried.base.errors import NotConnected, UsageError
from serried.records import index
from serried.remote import link

SIGN_IN = "import sys; from serried.remote import link; print(link.sign_in('fir', sys.argv[1]).mode)"
FACTORS = (("Password: ", PASSWORD), ("One-time password (OATH) for `ada': ", CODES[0]))


def said(channel: link.Link) -> str:
    """All that a command prints."""
    channel.stdin.close()
    try:
        return channel.stdout.read().decode()
    finally:
        channel.kill()


def sign_in(*answers: tuple[str, str], host: str = "fir") -> str:
    """The last line of a login at a terminal."""
    status, shown = at_terminal([sys.executable, "-c", SIGN_IN, host], *answers)
    assert status == 0, shown
    return shown.splitlines()[-1]


def sign_in_by_key() -> link.Login:
    return link.sign_in("fir", "fir", may_prompt=False)


def refusal(action: Callable[[], object] = lambda: link.check("fir", "fir")) -> tuple[str, str | None, str | None]:
    with pytest.raises(NotConnected) as error:
        action()
    return error.value.message, error.value.hint, error.value.code


NOT_CONNECTED = ("not connected to `fir`", "serried login fir", "none")


def test_keys_connect_once_for_many_commands(make_sshd):
    far = make_sshd()
    assert refusal() == NOT_CONNECTED
    sign_in_by_key()
    assert [said(link.connect("fir", "fir", f"echo {number}; uname -n")) for number in range(3)] == [
        f"{number}\nfir-login1\n" for number in range(3)
    ]
    assert far.connections == 1
    login = link.last_login("fir")
    assert (login.mode, login.is_batch, login.node) == ("master", True, "fir-login1")


def test_bytes_pass_both_ways_unchanged(make_sshd):
    make_sshd()
    sign_in_by_key()
    everything = bytes(range(256)) * 4096 + b"\n~.\n"
    channel = link.connect("fir", "fir", "cat")
    with channel.stdin as stdin:
        at = 0
        received = b""
        while at < len(everything):
            at += stdin.write(everything[at : at + 4096])
            received += channel.stdout.read(4096)
    received += channel.stdout.read()
    channel.kill()
    assert received == everything


def test_a_second_factor_is_left_to_the_user(make_sshd):
    far = make_sshd(**SECOND_FACTOR)
    asked = ("`fir` asks for a password or a second factor", "serried login fir", "login-refused")
    assert [refusal(sign_in_by_key), refusal(), refusal()] == [asked, NOT_CONNECTED, NOT_CONNECTED]
    assert far.connections == 1


@pytest.mark.parametrize(("options", "answers"), [(SECOND_FACTOR, FACTORS), (KEY_AND_CODE, FACTORS[1:])])
def test_one_login_at_the_terminal_serves_all_commands(make_sshd, options, answers):
    far = make_sshd(Banner="/etc/issue.net", **options)
    assert sign_in(*answers) == "master"
    assert [said(link.connect("fir", "fir", "uname -n")) for _ in range(3)] == ["fir-login1\n"] * 3
    assert far.connections == 2  # the first one without prompts
    assert link.sign_out("fir")
    assert refusal() == NOT_CONNECTED
    assert far.connections == 2


def test_a_login_at_the_terminal_may_be_repeated_and_interrupted(make_sshd):
    far = make_sshd(**SECOND_FACTOR)
    wrong = [("Password: ", "wrong"), ("OATH", CODES[0])]
    assert sign_in(*wrong, ("Password: ", PASSWORD), ("OATH", CODES[1])) == "master"
    link.sign_out("fir")
    status, shown = at_terminal([sys.executable, "-c", SIGN_IN, "fir"], ("Password: ", "\x03"))
    assert (status, "KeyboardInterrupt" in shown) == (-2, True)
    assert far.connections == 3  # within a day after a refusal, a login begins with the prompts


def test_a_dead_connection_is_found_closed_and_named(make_sshd, monkeypatch):
    monkeypatch.setattr(link, "ANSWER_SECONDS", 1)
    far = make_sshd()
    sign_in_by_key()
    far.freeze()
    with pytest.raises(NotConnected) as error:
        link.check("fir", "fir")
    assert (error.value.message, error.value.hint) == ("the connection to `fir` is dead", "serried login fir")
    assert list(Path(os.environ["XDG_RUNTIME_DIR"], "serried").iterdir()) == []


def test_a_cut_connection_is_made_again_where_keys_suffice(make_sshd, clock):
    far = make_sshd()
    sign_in_by_key()
    far.cut()
    clock.passed += 60
    assert link.check("fir", "fir").node == "fir-login1"
    assert far.connections == 2


def test_a_command_without_a_connection_sends_nothing_to_the_host(make_sshd):
    far = make_sshd()
    login = sign_in_by_key()
    link.sign_out("fir")
    channel = link._start("fir", login, (*link._path(login), *link._NO_CONNECTION), "true")
    assert (channel.stdout.read(), channel.lost().message) == (b"", "not connected to `fir`")
    assert far.connections == 1


def test_connections_have_a_budget(make_sshd, clock):
    far = make_sshd()
    for action in (sign_in_by_key, *[lambda: link.check("fir", "fir")] * (link.MOST_OPENED - 1)):
        action()
        link.sign_out("fir")
    assert clock.passed == pytest.approx((link.MOST_OPENED - 1) * link.PAUSE_SECONDS, abs=1)
    too_many = "6 new connections to `fir` within 10 minutes; more could get this address banned"
    assert refusal() == (too_many, "try again in 8m45s", "budget")
    assert far.connections == link.MOST_OPENED
    clock.passed += link.WINDOW_SECONDS
    assert link.check("fir", "fir").node == "fir-login1"


def test_after_two_refused_logins_only_the_user_may_try(make_sshd, clock):
    far = make_sshd()
    assert sign_in_by_key().is_batch
    link.sign_out("fir")
    far.config(**SECOND_FACTOR)
    clock.passed += 60
    for _ in range(2):
        assert refusal()[2] == "login-refused"
        clock.passed += 60
    assert refusal() == (
        "`fir` refused 2 logins; more could get this address banned", "serried login fir", "budget",
    )  # fmt: skip
    assert far.connections == 3


@pytest.mark.parametrize("host", ["", "-oProxyCommand=id", "a b", "fir\n"])
def test_what_is_not_a_host_is_refused(host):
    with pytest.raises(UsageError) as error:
        link.connect("fir", host, "true")
    assert error.value.hint == "`login` in the profile is a host or an alias of ~/.ssh/config"


@pytest.mark.parametrize("cluster", ["../fir", "a/b", "/tmp/fir", ".."])
def test_what_is_not_the_name_of_a_folder_is_no_cluster(cluster):
    with pytest.raises(UsageError, match="is not the name of a cluster"):
        link.sign_in(cluster, "fir")


def test_each_way_to_fail_is_one_sentence_and_a_next_step(make_sshd, clock):
    far = make_sshd()

    def failing() -> tuple[str, str | None, str | None]:
        clock.passed += link.WINDOW_SECONDS
        found = refusal(sign_in_by_key)
        shutil.rmtree(Path(os.environ["XDG_STATE_HOME"], "serried", "remote"))
        return found

    far.expire_password()
    expired = failing()
    far.config(AllowUsers="somebody")
    refused = failing()
    (far.folder / "shadow").write_text("")
    far.stop()
    silent = failing()
    config = far.ssh_config.read_text()
    far.ssh_config.write_text("Host fir\n  HostName no..such..host\n" + config)
    nowhere = failing()
    far.ssh_config.write_text("Host fir\n  HostNmae fir\n" + config)
    misspelt = failing()
    far.ssh_config.write_text(config)
    far.renew_host_key()
    far.config()
    changed = failing()
    far.ssh_config.with_name("known_hosts").unlink()
    unknown = failing()
    assert [expired, refused, silent, nowhere, misspelt, changed, unknown] == [
        ("your password on `fir` has expired", "ssh fir asks for a new one", "password-expired"),
        ("`fir` asks for a password or a second factor", "serried login fir", "login-refused"),
        ("`fir` accepts no ssh connections", "check the network, and the site's VPN: ssh fir", "unreachable"),
        (
            "ssh does not find the host `fir`",
            "check `login` in the profile of `fir` and the aliases in ~/.ssh/config",
            "host-unknown",
        ),
        ("ssh rejects its configuration", "ssh -v fir shows each step", "ssh-configuration"),
        (
            "the host key of `fir` has changed",
            "compare the new key with the fingerprints that the site publishes, then remove the old one",
            "host-key-changed",
        ),
        (
            "the host key of `fir` is not known yet",
            "serried login fir shows its fingerprint and asks",
            "host-key-unknown",
        ),
    ]


def test_an_unknown_host_key_is_shown_at_login(make_sshd):
    far = make_sshd()
    known = far.ssh_config.with_name("known_hosts")
    known.unlink()
    assert sign_in(("continue connecting (yes/no/[fingerprint])? ", "yes")) == "master"
    assert known.read_text().startswith("[127.0.0.1]:")


def test_where_ssh_cannot_keep_a_connection_each_command_is_one(make_sshd, clock):
    far = make_sshd()
    config = far.ssh_config.read_text()
    far.ssh_config.write_text(f"{config}  ControlPath {os.environ['XDG_RUNTIME_DIR']}/nowhere/%C\n")
    assert (sign_in_by_key().mode, far.connections) == ("once", 1)
    assert [said(link.connect("fir", "fir", "uname -n")) for _ in range(2)] == ["fir-login1\n"] * 2
    assert (far.connections, round(clock.passed)) == (3, 30)


def test_where_a_connection_has_one_session_ever_each_command_is_one(make_sshd, clock, tmp_path, monkeypatch):
    far = make_sshd()
    ssh = tmp_path / "one-session"
    refuse = 'case "$*" in *ControlMaster=no*) echo "session request failed: refused by peer" >&2; exit 255;; esac'
    ssh.write_text(f'#!/bin/sh\n{refuse}\nexec {far.ssh} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("SERRIED_SSH", str(ssh))
    login = sign_in_by_key()
    assert (login.mode, said(link.connect("fir", "fir", "uname -n"))) == ("once", "fir-login1\n")
    assert (far.connections, round(clock.passed)) == (2, 15)
    refused = (login.why, "commands need a key that logs in without a prompt: ssh fir", None)
    probe = link._start("fir", login, (*link._path(login), *link._NO_CONNECTION), "true")
    assert refusal(lambda: link._probed_alone(probe, login._replace(is_batch=False, mode=""))) == refused


def test_a_connection_of_the_user_is_used_and_left_open(make_sshd):
    far = make_sshd(**SECOND_FACTOR)
    config = far.ssh_config.read_text()
    far.ssh_config.write_text(f"{config}  ControlMaster auto\n  ControlPath {os.environ['XDG_RUNTIME_DIR']}/own\n")
    assert at_terminal([far.ssh, "-o", "ControlPersist=60", "fir", "true"], *FACTORS)[0] == 0
    assert (sign_in_by_key().control, far.connections) == ("", 1)
    assert not link.sign_out("fir")
    assert said(link.connect("fir", "fir", "uname -n")) == "fir-login1\n"


def test_the_connection_is_made_by_one_of_several_processes(make_sshd):
    far = make_sshd()
    program = "from serried.remote import link; print(link.sign_in('fir', 'fir', may_prompt=False).node)"
    all_ = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [each.communicate()[0] for each in all_] == ["fir-login1\n"] * 4
    assert far.connections == 1


def test_a_noisy_login_in_any_shell_does_no_harm(make_sshd):
    for shell in ("bash", "tcsh", "fish", "dash"):
        far = make_sshd(shell, shell=shutil.which(shell), Banner="/etc/issue.net")
        noise = {"bash": ".bashrc", "tcsh": ".cshrc", "fish": ".config/fish/config.fish"}.get(shell, ".profile")
        (far.home / noise).parent.mkdir(parents=True, exist_ok=True)
        (far.home / noise).write_text("echo noise\n")
        assert link.sign_in(shell, shell).node == f"{shell}-login1"


def test_clusters_with_one_host_share_its_connection_and_its_budget(make_sshd, clock):
    far = make_sshd()
    sign_in_by_key()
    assert said(link.connect("elm", "fir", "uname -n")) == "fir-login1\n"
    assert (index.clusters(), far.connections, clock.passed) == (["fir"], 1, 0.0)
    link.sign_out("fir")
    assert said(link.connect("elm", "fir", "uname -n")) == "fir-login1\n"
    assert (far.connections, round(clock.passed)) == (2, link.PAUSE_SECONDS)
