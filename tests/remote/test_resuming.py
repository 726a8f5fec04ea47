"""A request that changes something, over connections that break."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
from pathlib import Path

import pytest
from local_shell import LocalLink, LoginNode

from serried.base.errors import Elsewhere, NotConnected, SubmissionUncertain
from serried.remote import relay
from serried.remote.client import RemoteRequest, RemoteSession
from waiting import until

ONCE = 'echo started >>"$HOME/started"; echo out; echo err >&2; seq 3000; exit 5'
OUTPUT = "out\n" + "".join(f"{number}\n" for number in range(1, 3001))


class CutLink(LocalLink):
    """A link that breaks after so many bytes from here, or from there."""

    def __init__(self, argv, environ, sent=None, received=None, pieces=1 << 16):
        """`pieces`: the most bytes that it passes on at once."""
        super().__init__(argv, environ)
        self.pieces = pieces
        self.counts = [0, 0]
        (far_reads, near_writes), (near_reads, far_writes) = os.pipe(), os.pipe()
        ways = [
            (os.fdopen(far_reads, "rb", 0), self.stdin, sent),
            (self.stdout, os.fdopen(far_writes, "wb", 0), received),
        ]
        self.stdin, self.stdout = os.fdopen(near_writes, "wb", 0), os.fdopen(near_reads, "rb", 0)
        for number, (reads, writes, limit) in enumerate(ways):
            files = [
                os.fdopen(end, mode, 0) if isinstance(end, int) else end
                for end, mode in ((reads, "rb"), (writes, "wb"))
            ]
            threading.Thread(target=self._copy, args=(number, *files, limit), daemon=True).start()

    def _copy(self, number, reads, writes, limit):
        """The one that ends takes the process along, as sshd does."""
        with reads, writes, contextlib.suppress(OSError):
            sizes = random.Random(number)
            while data := reads.read(sizes.randint(1, self.pieces)):
                data = data if limit is None else data[: limit - self.counts[number]]
                writes.write(data)
                self.counts[number] += len(data)
                if self.counts[number] == limit:
                    break
            self._process.terminate()

    def kill(self):
        self._process.kill()
        self._process.wait()
        for pipe in (self.stdin, self.stdout, self._process.stderr):
            pipe.close()


class CutNode(LoginNode):
    """The first link breaks after so many bytes, further ones do not."""

    def __init__(self, home: Path, **limits: int | None):
        super().__init__(home)
        self.limits, self.links = [limits], []

    def connect(self, _cluster, _host, command):
        limits = self.limits.pop(0) if self.limits else {}
        self.links.append(CutLink([self.shell, "-c", command], self.environ, **limits))
        return self.links[-1]


def session(node, laptop):
    return RemoteSession("fir", "fir", connect=node.connect, environ=laptop, pause=lambda _seconds: None)


def run(node, laptop, line=ONCE, stdin=None):
    """Status and output."""
    output = bytearray()
    with session(node, laptop) as far:
        request = RemoteRequest((), {}, changes=True, shell=line)
        status = far.call(request, stdin=stdin, on_output=output.extend, on_errors=lambda _part: None)
    return status, output.decode()


@pytest.fixture(scope="module")
def home(tmp_path_factory, laptop):
    """A home with the far part in it: what is cut is the request."""
    home = tmp_path_factory.mktemp("ada") / "home"
    run(CutNode(home), laptop, "true")
    return home


@pytest.mark.parametrize("direction", ["sent", "received"])
def test_a_command_runs_once_wherever_its_connection_is_cut(direction, home, laptop):
    whole = CutNode(home)
    assert run(whole, laptop) == (5, OUTPUT)
    size = whole.links[0].counts[direction == "received"]
    for cut in (*range(1, size, size // 6), size - 40, size - 15, size - 1):
        (home / "started").unlink(missing_ok=True)
        node = CutNode(home, **{direction: cut})
        try:
            done = run(node, laptop)
        except NotConnected:  # before anything was sent
            assert not (home / "started").exists(), f"cut after {cut} bytes {direction}"
            continue
        assert (done, (home / "started").read_text()) == ((5, OUTPUT), "started\n"), (
            f"cut after {cut} bytes {direction}"
        )


@pytest.mark.parametrize("changes", [False, True])
def test_a_link_that_passes_single_bytes_on_changes_nothing(changes, home, laptop, tmp_path):
    (tmp_path / "input").write_bytes(b"line\n" * 500)
    node, output = CutNode(home, pieces=7), bytearray()
    with session(node, laptop) as far, (tmp_path / "input").open("rb") as stdin:
        request = RemoteRequest((), {}, changes, shell="cat; seq 1000; exit 5")
        assert far.call(request, stdin=stdin, on_output=output.extend, on_errors=output.extend) == 5
    assert output.decode() == "line\n" * 500 + "".join(f"{number}\n" for number in range(1, 1001))
    assert len(node.links) == 1


def test_a_cut_does_not_shorten_what_a_command_reads(home, laptop, tmp_path):
    (tmp_path / "input").write_bytes(b"line\n" * 50_000)
    node = CutNode(home, sent=120_000)
    with (tmp_path / "input").open("rb") as stdin:
        assert run(node, laptop, "wc -c", stdin) == (0, "250000\n")
    assert len(node.links) == 2


def test_a_command_that_was_not_sent_says_that_nothing_was_started(home, laptop, monkeypatch):
    node = CutNode(home, received=10)
    monkeypatch.setattr(relay, "session_with", lambda _cluster: session(node, laptop))
    with pytest.raises(NotConnected) as raised:
        relay.relay(Elsewhere("fir", "it is there"), ("stop", "k3f9q2"), "changes", b"")
    assert (raised.value.message, raised.value.exit_code) == ("no connection; nothing was started there", 4)
    assert len(node.links) == 1


def test_a_command_that_was_killed_over_there_is_uncertain(home, laptop):
    node = CutNode(home)
    line = 'echo $PPID >"$HOME/keeper"; exec sleep 600'
    killed = threading.Thread(target=_kill_the_keeper, args=(home,))
    killed.start()
    with pytest.raises(SubmissionUncertain) as raised:
        run(node, laptop, line)
    killed.join()
    assert (raised.value.exit_code, str(raised.value)) == (
        3,
        "the command was killed on `fir`, and may have had an effect",
    )


def _kill_the_keeper(home):
    keeper = until(lambda: (home / "keeper").exists() and (home / "keeper").read_text())
    os.kill(int(keeper), signal.SIGKILL)


def test_a_connection_that_stays_away_leaves_the_command_uncertain(home, laptop):
    node = CutNode(home, received=3000)
    first = node.connect

    def connect(*words):
        if node.links:
            raise NotConnected("not connected to `fir`", hint="serried login fir", code="none")
        return first(*words)

    node.connect = connect
    with pytest.raises(SubmissionUncertain) as raised:
        run(node, laptop)
    assert (str(raised.value), raised.value.hint) == (
        "the connection to `fir` is lost, and the command may continue there",
        "serried login fir, then: serried ps shows the runs there",
    )


@pytest.mark.parametrize("is_old", [False, True])
def test_a_command_whose_folder_is_deleted_is_not_started_again(is_old, home, laptop):
    (home / "started").unlink(missing_ok=True)
    node, first = CutNode(home, received=3000), CutNode(home)

    def connect(*words):
        if node.links:
            for request in (home / ".cache/serried/requests").iterdir():
                if is_old:
                    os.utime(request, (0, 0))
                    os.utime(request / "keeper", (0, 0))
                else:
                    shutil.rmtree(request)
            run(first, laptop, "true")
        return CutNode.connect(node, *words)

    node.connect = connect
    with pytest.raises(SubmissionUncertain):
        run(node, laptop)
    assert (home / "started").read_text() == "started\n"


def test_a_request_is_kept_while_its_keeper_lives(home, laptop):
    requests = home / ".cache/serried/requests"
    left = requests / "0.json"
    left.write_text("{}")
    os.utime(left, (0, 0))

    def delete(_part):
        for request in requests.glob("*/keeper"):
            os.utime(request.parent, (0, 0))
        run(CutNode(home), laptop, "true")
        (home / "go").touch()

    line = 'echo ready; until [ -e "$HOME/go" ]; do sleep 0.01; done; exit 7'
    request = RemoteRequest((), {}, changes=True, shell=line)
    with session(CutNode(home), laptop) as far:
        assert (far.call(request, on_output=delete, on_errors=print), left.exists()) == (7, False)


def test_ctrl_c_reaches_the_command(home, laptop):
    node = CutNode(home)
    output = bytearray()

    def interrupt(part):
        output.extend(part)
        os.kill(os.getpid(), signal.SIGINT)

    request = RemoteRequest((), {}, changes=True, shell="trap 'exit 130' INT; echo ready; sleep 600 & wait")
    with session(node, laptop) as far:
        assert (far.call(request, on_output=interrupt, on_errors=output.extend), output) == (130, b"ready\n")


def test_a_full_home_says_so_and_starts_nothing(home, laptop):
    requests = home / ".cache/serried/requests"
    for each in requests.iterdir():
        each.rename(home / each.name)
    requests.rmdir()
    requests.write_text("a file where the folder belongs")
    (home / "started").unlink(missing_ok=True)
    with pytest.raises(Exception, match="requests") as raised:
        run(CutNode(home), laptop)
    assert (raised.value.exit_code, (home / "started").exists()) == (1, False)
