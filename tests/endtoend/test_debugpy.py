"""The recipe of docs/guides/why.md: a client attaches to the debugpy of each rank, and the program runs on."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path

import pytest

from place import Place

pytest.importorskip("debugpy", reason="needs debugpy: pip install debugpy")
PROGRAM = """
import os
import debugpy
answer = 7 * (1 + int(os.environ["RANK"]))
debugpy.breakpoint()
print("result", answer, flush=True)
"""
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "why.md"


class Client:
    """Speaks the debug adapter protocol, as VS Code does."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=240)
        self._file = self._socket.makefile("rb")
        self._number = 0

    def send(self, command: str, **arguments: object) -> None:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def wait_for(self, name: str) -> dict:
        """The next event, or response to a command, of that name."""
        while True:
            length = 0
            while (line := self._file.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            message = json.loads(self._file.read(length))
            if name in (message.get("event"), message.get("command")):
                return message

    def request(self, command: str, **arguments: object) -> dict:
        self.send(command, **arguments)
        return self.wait_for(command)["body"]

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def free_port() -> int:
    """A port that ends in 0, with the next one free too: the recipe appends the rank."""
    for port in range(20000, 32000, 10):
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def has_printed(place: Place, run: str, text: str, rank: int) -> bool:
    return text in (place.directory(run) / "attempts" / "1" / "node-0" / f"rank-{rank}.log").read_text()


def test_a_client_attaches_to_each_of_two_ranks_and_they_complete(local: Place, wait_until) -> None:
    (local.project / "train.py").write_text(PROGRAM)
    port = free_port()
    recipe = re.search(r"-- python (-m debugpy .*) train\.py", PAGE.read_text(encoding="utf-8"))
    assert recipe is not None
    words = recipe[1].replace("567{local_rank}", f"{port // 10}{{local_rank}}").split()
    run = local.submit("--ranks", "2", "--cpus", "1", "--mem", "300M", "--", sys.executable, *words, "train.py")

    def attach(rank: int) -> Client | None:
        try:
            return Client(port + rank)
        except OSError:
            return None

    for rank in (0, 1):
        client = wait_until(lambda rank=rank: attach(rank), 240, what="debugpy listens")
        client.send("initialize", adapterID="test", clientID="test")
        client.wait_for("initialize")
        client.send("attach", justMyCode=True)
        client.wait_for("initialized")
        client.send("configurationDone")
        stopped = client.wait_for("stopped")["body"]
        frames = client.request("stackTrace", threadId=stopped["threadId"])["stackFrames"]
        value = client.request("evaluate", expression="answer", frameId=frames[0]["id"])["result"]
        assert (Path(frames[0]["source"]["path"]).name, value) == ("train.py", str(7 * (1 + rank)))
        client.send("disconnect", terminateDebuggee=False)
        client.wait_for("disconnect")
        client.close()

    code, end = local.wait(run)
    assert (code, end["state"]) == (0, "COMPLETED"), end
    assert [has_printed(local, run, f"result {7 * (1 + rank)}", rank) for rank in (0, 1)] == [True, True]
