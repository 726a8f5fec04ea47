"""Notices of what becomes of a run: by a command and a webhook, at most once, and never at the run's cost."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from place import HAS_PBS, Place
from trees import holding

CANARY = "canary-7d1f"

HOST = socket.gethostname() if HAS_PBS else "127.0.0.1"
"""PBS's nodes are other hosts; those of the lab are not."""


class Receiver:
    """Keeps what is posted to it, answers `/refuses` with 500, and never answers `/hangs`."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.is_over = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append({"path": self.path, **json.loads(body)})
                if self.path.startswith("/hangs"):
                    receiver.is_over.wait(600)
                self.send_response(500 if self.path.startswith("/refuses") else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # all of them may come at once, while nobody looks

        self.server = Server((HOST, 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://{HOST}:{self.server.server_port}/{path}/{CANARY}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.is_over.set()
    made.server.shutdown()
    made.server.server_close()


KEEPS = """\
import json, os, sys
told = json.load(sys.stdin)
with open(sys.argv[1], "a") as file:
    print(json.dumps([*(os.environ[f"SERRIED_{name}"] for name in ("EVENT", "RUN_ID", "STATE")), told]), file=file)
if sys.argv[2:]:
    sys.exit(4)
"""

FILE = """
[defaults]
cluster = "{cluster}"
[defaults.resources]
ranks = 1
time = "10m"
[defaults.notify]
webhook = "HOOK"
on = ["start", "finish", "fail", "stall"]
[experiments.good]
command = "echo done"
notify.command = ["{python}", "{keeps}", "{said} $(id) {{run}}"]
[experiments.bad]
command = ["bash", "-c", "exit 3"]
notify.command = ["{python}", "{keeps}", "{said}", "and fails"]
[experiments.many]
command = ["bash", "-c", "exit {{task}}"]
[experiments.after]
command = "true"
after = "bad"
[experiments.quiet]
command = "sleep 1000"
limit.output_timeout = "6s"
limit.grace = "1s"
notify.on = ["stall"]
[experiments.elsewhere]
command = "true"
notify = {{command = "/nonexistent/program", on = "finish"}}
"""


@pytest.fixture
def tell(place: Place, tmp_path: Path):
    keeps, said = tmp_path / "keeps.py", tmp_path / "said"
    keeps.write_text(KEEPS)
    text = FILE.format(cluster=place.cluster, python=sys.executable, keeps=keeps, said=said)
    (place.project / "serried.toml").write_text(text)

    def submit(url: str, *words: str) -> dict[str, str]:
        here = place.with_environ(HOOK=url, SERRIED_LOCAL_SLOTS="16")
        done = here.serried("submit", "--json", *words)
        assert done.returncode == 0, done.stderr
        return {run["experiment"]: run["id"] for run in json.loads(done.stdout)["runs"]}

    return submit


def test_each_event_is_told_once_and_costs_the_run_nothing(place, tell, receiver, tmp_path, wait_until):
    runs = tell(receiver.url("ok"), "good", "bad", "after", "quiet", "elsewhere")
    many = tell(receiver.url("ok"), "many", "--array", "0-2")["many"]
    refused = tell("http://127.0.0.1:9/" + CANARY, "good")["good"]
    hung = tell(receiver.url("hangs"), "good")["good"]
    whole = tell(receiver.url("whole"), "good", "--array", "0-1")["good"]
    all_ = {**runs, "many": many, "whole": whole, "refused": refused, "hung": hung}
    ends = {name: place.wait(run)[1]["state"] for name, run in all_.items()}

    assert ends == {
        "good": "COMPLETED",
        "bad": "FAILED",
        "after": "CANCELLED",
        "quiet": "FAILED",
        "elsewhere": "COMPLETED",
        "many": "FAILED",
        "whole": "COMPLETED",
        "refused": "COMPLETED",
        "hung": "COMPLETED",
    }
    expected = {
        ("good", "start"), ("good", "finish"), ("bad", "start"), ("bad", "fail"), ("after", "fail"),
        ("quiet", "stall"), ("elsewhere", "finish"), ("many", "start"), ("many", "fail"),
    }  # fmt: skip
    names = {run: name for name, run in all_.items()}

    def posted() -> list[tuple[str, str]]:
        return sorted((names[one["run"]], one["event"]) for one in receiver.got if one["path"].startswith("/ok"))

    wait_until(lambda: len(posted()) >= len(expected))
    assert posted() == sorted(expected)
    fail = next(one for one in receiver.got if (one["run"], one["event"]) == (runs["bad"], "fail"))
    assert (fail["state"], fail["exit_code"], fail["attempt"]) == ("FAILED", 3, 1)
    assert fail["text"].startswith(f"bad ({runs['bad']}) on {place.cluster} FAILED: rank 0 on ")

    def finishes() -> list[dict[str, Any]]:
        return [one for one in receiver.got if one["run"] == whole and one["event"] == "finish"]

    wait_until(finishes)
    (finish,) = finishes()
    assert (finish["path"].partition("/canary")[0], finish["task"]) == ("/whole", None)
    text = finish["text"]
    assert text == f"good ({whole}) on {place.cluster} COMPLETED: all 2 tasks have completed"

    # The command: words as they are, the event in its environment and on its stdin.
    def good() -> list[list[str]]:
        lines = [json.loads(line) for path in tmp_path.glob("said*") for line in path.read_text().splitlines()]
        return sorted(line[:3] for line in lines if line[1] == runs["good"])

    wait_until(lambda: len(good()) >= 2)
    assert good() == [["finish", runs["good"], "COMPLETED"], ["start", runs["good"], ""]]
    assert (tmp_path / "said $(id) {run}").exists()

    def log(name: str) -> str:
        return (place.directory(all_[name]) / "notices.log").read_text()

    wait_until(lambda: "fail: command: ended with status 4" in log("bad"))
    wait_until(lambda: "finish: command: cannot be started: No such file or directory" in log("elsewhere"))
    wait_until(lambda: "finish: webhook $HOOK: Connection refused" in log("refused"))
    wait_until(lambda: "start: webhook $HOOK: no answer within 10 s" in log("hung"))
    state = Path(place.environ["XDG_STATE_HOME"])
    for run in all_.values():
        folder = place.directory(run)
        kept = [path for each in (folder, state) for path in holding(each, CANARY.encode())]
        assert [path for path in kept if "private" not in path.parts and "supervisor" not in path.name] == []
