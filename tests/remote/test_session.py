from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from local_shell import LoginNode

from serried.base import frames
from serried.base.errors import SerriedError, SubmissionUncertain
from serried.base.frames import FrameWire
from serried.remote import far_part
from serried.remote.client import ConnectionLost, RemoteRequest, RemoteSession, _Exchange

VERSION = RemoteRequest(("--version",), {}, changes=False)
SHELLS = ("bash", "dash", "fish", "tcsh", "zsh")


@pytest.fixture
def node(tmp_path):
    return LoginNode(tmp_path / "home of ada")


class Calls:
    """Requests in one session, and what they print."""

    def __init__(self, node, laptop, **more):
        self.session = RemoteSession("fir", "fir.example", connect=node.connect, environ=laptop, **more)
        self.output, self.errors = bytearray(), bytearray()

    def __call__(self, request, stdin=None):
        """Status, output and errors."""
        self.output.clear()
        self.errors.clear()
        with self.session:
            status = self.session.call(request, stdin=stdin, on_output=self.output.extend, on_errors=self.errors.extend)
        return status, self.output.decode(), self.errors.decode()


def shell(line, *, changes=False, **env):
    return RemoteRequest((), env, changes, shell=line)


@pytest.mark.parametrize("name", SHELLS)
def test_a_command_runs_over_there_whatever_the_login_shell_is(name, tmp_path, laptop):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}: apt-get install {name}")
    node = LoginNode(tmp_path / "home of ada", path)
    assert Calls(node, laptop)(VERSION) == (0, "serried, version 0.1.0\n", "")


def test_an_error_over_there_is_the_same_as_here(node, laptop):
    request = RemoteRequest(("subimt",), {}, changes=False)
    message = "error: unknown command: `subimt`\n\nhint: did you mean `serried submit`? Submit a job to the cluster.\n"
    assert Calls(node, laptop)(request) == (2, "", message)


@pytest.mark.parametrize("changes", [False, True])
def test_a_command_has_the_home_the_variables_and_the_terminals_of_its_request(changes, node, laptop):
    line = 'pwd; echo "$COLUMNS"; echo warned >&2; exit 7'
    expected = (7, f"{node.home}\n132\n", "warned\n")
    assert Calls(node, laptop)(shell(line, changes=changes, COLUMNS="132")) == expected


@pytest.mark.parametrize("changes", [False, True])
def test_a_command_reads_what_is_piped_into_it_here(changes, node, laptop, tmp_path):
    (tmp_path / "input").write_bytes(b"line\n" * 100_000)
    with (tmp_path / "input").open("rb") as stdin:
        assert Calls(node, laptop)(shell("cksum", changes=changes), stdin)[:2] == (0, "3409231282 500000\n")


def test_the_far_part_travels_once_for_each_version(node, laptop):
    Calls(node, laptop)(VERSION)
    (part,) = (node.home / ".cache/serried/far").iterdir()
    unpacked = part.stat().st_ino
    Calls(node, laptop)(VERSION)
    assert [entry.stat().st_ino for entry in part.parent.iterdir()] == [unpacked]
    assert part.name == far_part.archive(laptop).digest


def test_a_far_part_that_lacks_a_file_is_replaced(node, laptop):
    Calls(node, laptop)(VERSION)
    (part,) = (node.home / ".cache/serried/far").iterdir()
    (part / "serried/cli/ps.py").unlink()
    assert Calls(node, laptop)(VERSION)[0] == 0
    assert (part / "serried/cli/ps.py").exists()


def test_the_line_for_the_login_shell_is_not_too_long_for_an_old_tcsh(laptop):
    line = far_part.command(far_part.archive(laptop), "0" * 16)
    assert (len(line) < 4096, set("\\!\n") & set(line), line.count("'")) == (True, set(), 2)


def test_login_scripts_may_print(node, laptop):
    for name in (".bashrc", ".bash_profile", ".profile"):
        (node.home / name).write_text("echo welcome; echo careful >&2; cat /dev/zero | head -c 100000\n")
    node.environ["BASH_ENV"] = str(node.home / ".bashrc")
    assert Calls(node, laptop)(VERSION)[:2] == (0, "serried, version 0.1.0\n")


def test_the_login_shell_sets_path_and_umask(node, laptop):
    (node.home / ".bash_profile").write_text('export PATH="$HOME/tools:$PATH" COLOUR="blue\n  sky"; umask 027\n')
    line = 'echo "${PATH%%:*}"; echo "$COLOUR"; umask'
    assert Calls(node, laptop)(shell(line, changes=True))[1] == f"{node.home}/tools\nblue\n  sky\n0027\n"


def test_no_secret_of_the_login_shell_is_kept_in_a_file(node, laptop):
    (node.home / ".bash_profile").write_text("export HF_TOKEN=hush SCRATCH=/scratch/ada WORK_KEY='a=b;c'\n")
    for _ in range(2):
        assert Calls(node, laptop)(shell("echo $SCRATCH"))[1] == "/scratch/ada\n"
    kept = (node.home / ".cache/serried/environment").read_text()
    assert [word for word in ("/scratch/ada", "hush", "a=b") if word in kept] == ["/scratch/ada"]


def test_an_old_python_is_named_in_the_error(tmp_path, laptop):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "tail"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text("#!/bin/sh\n[ $1 = -V ] && echo Python 3.6.8; exit 1\n")
    (tools / "python3").chmod(0o755)
    node = LoginNode(tmp_path / "home", PATH=str(tools))
    with pytest.raises(SerriedError) as raised:
        Calls(node, laptop)(VERSION)
    assert str(raised.value) == "`fir.example` has no Python 3.9 or later; it has Python 3.6.8"


def test_a_python_that_a_module_brings_is_used(tmp_path, laptop):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "bash", "cat", "tail", "env"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    node = LoginNode(tmp_path / "home", PATH=str(tools))
    python = Path(os.path.realpath("/proc/self/exe"))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/python3").symlink_to(python)
    line = f'module() {{ [ "$*" = "load python/3.11" ] && PATH="{tmp_path}/modules:$PATH"; }}\n'
    (node.home / ".bash_profile").write_text(line)
    assert Calls(node, laptop)(VERSION)[:2] == (0, "serried, version 0.1.0\n")


def test_a_far_part_that_is_damaged_on_its_way_is_refused(node, laptop, monkeypatch):
    whole = far_part.archive(laptop)
    damaged = whole._replace(content=lambda: whole.content()[:-1] + b"?")
    monkeypatch.setattr(far_part, "archive", lambda _environ: damaged)
    with pytest.raises(SerriedError) as raised:
        Calls(node, laptop)(VERSION)
    assert (str(raised.value), raised.value.hint) == ("what `fir.example` received is damaged", "try again")
    assert list((node.home / ".cache/serried/far").iterdir()) == []


def test_an_archive_that_is_damaged_here_is_packed_again(tmp_path):
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    whole = far_part.archive(environ)
    (kept,) = tmp_path.glob("serried/far-*.zip")
    kept.write_bytes(whole.content()[:-1])
    again = far_part.archive(environ)
    assert (again.digest, again.size) == (whole.digest, whole.size)
    assert again.content() == whole.content()
    assert not kept.exists()


def test_a_command_that_is_killed_over_there_may_have_had_an_effect(node, laptop):
    with pytest.raises(SubmissionUncertain, match="the command was killed") as raised:
        Calls(node, laptop)(shell("kill -KILL $$", changes=True))
    assert raised.value.exit_code == 3


def test_a_folder_in_which_others_can_write_is_not_trusted(node, laptop):
    base = node.home / ".cache/serried"
    base.mkdir(parents=True)
    base.chmod(0o777)
    with pytest.raises(SerriedError) as raised:
        Calls(node, laptop)(VERSION)
    assert (str(raised.value), list(base.glob("far/*"))) == (f"cannot write to {base} on `fir.example`: EPERM", [])


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
def test_no_program_is_started_that_another_user_names(node, laptop):
    base = node.home / ".cache/serried"
    base.mkdir(parents=True)
    (base / "hostile").write_text(f"#!/bin/sh\ntouch '{node.home}/pwned'\n")
    (base / "hostile").chmod(0o755)
    (base / "python").write_text(f"{base}/hostile\n")
    os.chown(base, 65534, 65534)
    with pytest.raises(SerriedError, match="EPERM"):
        Calls(node, laptop)(VERSION)
    assert not list(node.home.rglob("pwned"))


def test_an_archive_that_another_connection_brought_first_stays(tmp_path, laptop):
    part = far_part.archive(laptop)
    folder = tmp_path / "far" / part.digest
    folder.parent.mkdir()
    far_part.unpack(part.content(), folder)
    first = folder.stat().st_ino
    far_part.unpack(part.content(), folder)
    assert ([entry.name for entry in folder.parent.iterdir()], folder.stat().st_ino) == ([part.digest], first)


def test_a_value_that_may_be_a_secret_is_in_no_file(node, laptop):
    (node.home / ".bash_profile").write_text("export WORK_TOKEN=hunter2 STORE_PASS=hunter2 SCRATCH=/scratch/ada\n")
    Calls(node, laptop)(shell("true"))
    kept = json.loads((node.home / ".cache/serried/environment").read_text())
    assert (kept["SCRATCH"], "hunter2" in kept.values()) == ("/scratch/ada", False)


def test_ctrl_c_ends_a_question_to_the_far_end(node, laptop):
    with Calls(node, laptop).session as session, pytest.raises(KeyboardInterrupt):
        session.ask("contents", {"key": "x"}, data=_interrupting())


def _interrupting():
    yield b"one"
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        yield b"more"


def test_input_that_the_connection_does_not_take_yet_is_not_read(tmp_path):
    (tmp_path / "input").write_bytes(bytes(1 << 24))
    (reads, taken), (unread, writes) = os.pipe(), os.pipe()
    wire = FrameWire(reads, writes)
    with (tmp_path / "input").open("rb", 0) as stdin, pytest.raises(ConnectionLost):
        _Exchange(stdin, bytes, bytes).relay(wire, 1, deadline=time.monotonic())
    assert len(wire.backlog) < frames.LONGEST + 2 * frames.CHUNK
    for descriptor in (reads, taken, unread, writes):
        os.close(descriptor)
