"""`serried track tensorboard`, with TensorBoard itself: its data is read over HTTP."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

from serried.base.errors import install_hint
from serried.base.files import make_directory, write_json
from serried.cli import track, web_page
from serried.records.index import Selection
from serried.schema.plan import Sweep
from waiting import until

SWEEP = Sweep("k3f9q2", ("lr",))
TRACKER = "results/tracking/tensorboard"


def write_events(folder: Path, steps):
    """An event file with `loss` = step / 10, as the tracker leaves it; it hides earlier steps from its first on."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder))
    writer.add_event(Event(wall_time=1.0, step=steps[0], session_log=SessionLog(status=SessionLog.START)))
    for step in steps:
        value = Summary.Value(tag="loss", simple_value=step / 10)
        writer.add_event(Event(wall_time=1.8e9 + step, step=step, summary=Summary(value=[value])))
    writer.close()


class Served(NamedTuple):
    process: subprocess.Popen
    printed: list[str]
    address: str

    @property
    def port(self):
        return int(self.address.split(":")[2].partition("/")[0])

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            return answer.read()

    def runs(self):
        return json.loads(self.get("data/runs"))

    def loss(self, run):
        """Empty until TensorBoard has read the run: it lists a run before."""
        try:
            values = json.loads(self.get(f"data/plugin/scalars/scalars?tag=loss&run={quote(run)}"))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return []
            raise
        return [(step, round(value, 6)) for _, step, value in values]


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """`serve("k3f9q2")` starts `serried track tensorboard k3f9q2` and waits for its address."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with contextlib.ExitStack() as stack:

        def start(*runs, through=()):
            argv = [*through, sys.executable, "-m", "serried", "track", "tensorboard", *runs]
            errors = stack.enter_context((tmp_path / "stderr").open("w"))
            process = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True))
            stack.callback(process.kill)
            printed = [process.stdout.readline().strip() for _ in range(2)]
            assert printed[1].startswith("http://127.0.0.1:"), (tmp_path / "stderr").read_text()
            return Served(process, printed, printed[1])

        yield start


def refusal(url):
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(url, timeout=60)
    with error.value as answer:
        return answer.code, answer.read().decode()


def send(port, request):
    """The first line of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").readline()


def listening(pid):
    """The addresses on which a process listens, as /proc/net spells them."""
    own = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]


def test_the_attempts_of_a_run_are_one_curve_behind_a_token_on_loopback_alone(ended, serve, tmp_path):
    place = ended("k3f9q2").where.path
    write_events(place / TRACKER, [1, 2, 3, 4])
    write_events(place / TRACKER, [3, 4, 5])  # after a requeue from step 2
    served = serve("k3f9q2")

    until(lambda: served.runs() == ["k3f9q2"])
    until(lambda: len(served.loss("k3f9q2")) == 5)
    assert served.loss("k3f9q2") == [(step, step / 10) for step in range(1, 6)]
    assert b"<title>" in served.get("")

    root, token = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)([\w-]{32})/", served.address).groups()
    for path in ("", "data/runs", f"{token[:-1]}/data/runs", f"{token}x/data/runs", f"x/{token}/data/runs", "%ff/"):
        code, answer = refusal(root + path)
        assert (code, json.loads(answer)) == (
            403,
            {
                "error": "wrong or missing token",
                "hint": "open the address that `serried track tensorboard` printed last",
            },
        )
    assert refusal(f"{root}?{token}")[0] == 403
    assert refusal(urllib.request.Request(served.address, headers={"Host": "evil.example"}))[0] == 421
    for garbage in (b"\x1b]0;ada\x07 / x y", b"GET http://[/ HTTP/1.1", b"GET / HTTP/ada", b"ada / HTTP/1.1", b"\0"):
        assert b" 200 " not in send(served.port, garbage + b"\r\n\r\n")
    posted = urllib.parse.urlencode({"requests": json.dumps([{"plugin": "scalars", "tag": "loss"}])}).encode()
    with urllib.request.urlopen(f"{served.address}data/plugin/timeseries/timeSeries", posted, timeout=60) as answer:
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert [len(points) for points in json.load(answer)[0]["runToSeries"].values()] == [5]
    assert until(lambda: listening(served.process.pid)) == [f"0100007F:{served.port:04X}"]
    assert token not in Path(f"/proc/{served.process.pid}/cmdline").read_text()

    expected = f"ssh -N -L {served.port}:127.0.0.1:{served.port} {getpass.getuser()}@{socket.gethostname()}"
    assert served.printed[0] == expected
    assert [folder.stat().st_mode & 0o777 for folder in (tmp_path / "tmp").iterdir()] == [0o700]
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(600) == 130
    assert list((tmp_path / "tmp").iterdir()) == []
    printed = (tmp_path / "stderr").read_text()
    assert "TensorBoard shows 1 curve of k3f9q2" in printed
    assert token not in printed
    for word in ("GET", "ada", "127.0.0.1", "Traceback"):
        assert word not in printed


def test_trials_are_curves_by_their_id_and_further_runs_of_the_sweep_belong_to_it(make, serve, tmp_path):
    first = make("k3f9q2", indices=range(3), sweep=SWEEP)
    more = make("m2n3p4", indices=[2], sweep=SWEEP)
    for run, task in ((first, 0), (first, 1), (more, 2)):
        run.ending(task=task)
        write_events(run.where.task(task).path / TRACKER, [task])
    served = serve("k3f9q2")

    until(lambda: sorted(served.runs()) == ["k3f9q2/0", "k3f9q2/1", "m2n3p4/2"])
    until(lambda: served.loss("k3f9q2/1") == [(1, 0.1)])
    served.process.terminate()
    assert served.process.wait(600) == 143
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [name for name, _ in track.named_event_files(Selection(first.record, 1))] == ["k3f9q2/1"] * 2


def test_folders_of_the_program_are_curves_also_where_names_are_hostile_long_or_alike_and_links_are_not(make, serve):
    """TensorBoard would follow links in circles, and out of the run."""
    run = make("k3f9q2", name="<script>alert(1)</script>\n\x1b[2J").ending()
    place = run.where.path
    folder = place / "results" / "runs"
    write_events(folder / "a", [1])
    write_events(folder / "a" / "loss_train", [2])  # as add_scalars does
    (folder / "a").rename(os.fsdecode(bytes(folder) + b"/\xff<b>\n"))
    for step, name in enumerate(("a/b", "a:b", f"{'x' * 99}/1", f"{'y' * 99}/{'x' * 70}/1"), 3):
        write_events(place / "results" / name, [step])
    write_events(place / "checkpoints" / "tensorboard", [7])
    write_events(place.parent / "other", [8])
    for name, target in (("loop", "."), ("loop2", "."), ("up", ".."), ("tfevents.d", "."), ("other", place.parent)):
        (folder / name).symlink_to(target)
    for path in (place.parent / "other").iterdir():
        (folder / f"linked-{path.name}").symlink_to(path)
    served = serve("k3f9q2")

    until(lambda: len(served.runs()) == 7)
    names = served.runs()
    until(lambda: all(map(served.loss, names)))
    own = r"k3f9q2:results:runs:\udcff<b>\n"
    assert {own, f"{own}:loss_train", "k3f9q2:results:a:b", "k3f9q2:checkpoints:tensorboard"} < set(names)
    assert served.loss(f"{own}:loss_train") == [(2, 0.2)]
    assert sorted(step for name in names for step, _ in served.loss(name)) == [1, 2, 3, 4, 5, 6, 7]
    assert sum(bool(re.search(r"~[0-9a-f]{6}$", name)) for name in names) == 3
    assert max(map(len, names)) == len("k3f9q2:") + 60 + len("~123456")


def test_the_runs_own_folders_come_before_the_tree_that_it_worked_in(ended):
    run = ended("k3f9q2")
    source = run.plan.source._replace(snapshot=True)
    write_json(run.record.directory.plan, run.plan._replace(source=source).to_json())
    for folder in (run.where.source / "logs", run.where.path / TRACKER):
        make_directory(folder)
        (folder / "events.out.tfevents.1").touch()
    curves = [name for name, _ in track.named_event_files(Selection(run.record))]
    assert curves == ["k3f9q2", "k3f9q2", "k3f9q2:logs"]  # the results have the tracker's folder, too


def test_files_that_appear_while_it_serves_are_added(make, serve, monkeypatch, tmp_path):
    program = tmp_path / "often" / "sitecustomize.py"
    program.parent.mkdir()
    program.write_text("import serried.cli.track as own\nown.RELOAD_SECONDS = 0.5\n")
    monkeypatch.setenv("PYTHONPATH", str(program.parent), prepend=":")
    run = make("k3f9q2")
    served = serve("k3f9q2")

    assert "run `k3f9q2` has no event files yet; `[track]` has no sink `tensorboard`" in re.sub(
        r"\s+", " ", (tmp_path / "stderr").read_text()
    )
    assert served.runs() == []
    write_events(run.where.path / TRACKER, [1])
    until(lambda: served.runs() == ["k3f9q2"])
    write_events(run.where.path / TRACKER, [2])
    until(lambda: served.loss("k3f9q2") == [(1, 0.1), (2, 0.2)])


def test_it_serves_on_after_the_logout_if_it_was_started_by_nohup(ended, serve):
    write_events(ended("k3f9q2").where.path / TRACKER, [1])
    served = serve("k3f9q2", through=["nohup"])
    served.process.send_signal(signal.SIGHUP)
    until(lambda: served.runs() == ["k3f9q2"])
    served.process.terminate()
    assert served.process.wait(600) == 143


def test_a_port_that_is_taken_gets_a_note(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(web_page, "_PORTS", port - os.getuid() % 10_000)
        with web_page.loopback_listener("TensorBoard") as own:
            assert own.getsockname()[1] != port
    assert f"port {port} is taken" in capsys.readouterr().err


def test_an_ended_run_without_event_files_is_an_error(serried, ended):
    ended("k3f9q2")
    done = serried("track", "tensorboard", "k3f9q2")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: run `k3f9q2` has no event files of TensorBoard\n\n"
        'hint: add `track = { sinks = ["tensorboard"] }` to the experiment; the next run then writes them\n'
    )


def test_without_tensorboard_the_command_says_how_to_install_it(serried, ended, monkeypatch):
    ended("k3f9q2")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    done = serried("track", "tensorboard", "k3f9q2")
    assert done.code == 2
    assert done.err.startswith(
        "error: a library that `serried track tensorboard` needs is not installed beside Serried: "
    )
    assert done.err.endswith(f"\n\nhint: {install_hint('track')}\n")


def test_the_tunnel_leads_to_this_very_node():
    user, host = getpass.getuser(), socket.gethostname()
    for connection, words in (
        ("", f"{user}@{host}"),
        ("10.0.0.7 51234 127.0.0.1 22", f"{user}@127.0.0.1"),
        ("10.0.0.7 51234 127.0.0.1 2222", f"-p 2222 {user}@127.0.0.1"),
        ("10.0.0.7 51234 192.0.2.1 22", f"-J {user}@192.0.2.1 {user}@{host}"),  # from a login node to a job's node
        ("fe80::1 51234 2001:db8::1 2222", f"-J '{user}@[2001:db8::1]:2222' {user}@{host}"),
    ):
        assert web_page.ssh_tunnel(20001, {"SSH_CONNECTION": connection}) == f"ssh -N -L 20001:127.0.0.1:20001 {words}"
    assert web_page.ssh_tunnel(20001, {}, "/home/a:b") == f"ssh -N -L '20001:/home/a\\:b' {user}@{host}"
