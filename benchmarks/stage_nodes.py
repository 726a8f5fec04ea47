"""Data to N nodes, read once and passed on, against every node reading it: namespaces, each behind a link of its own.

As root, with `ip`, `tc`, `sshd` and `sshfs`: a server of files and N nodes, whose links take so many megabits. What
the nodes read is an sshfs of the server's, as good a shared file system as one machine has.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measure import ROOT, Figure, record

MEGABITS = 80
BYTES = 60_000_000
FILES = 500
"""As many small ones, which make a sixth of it."""
NODES = (1, 2, 4, 8)
HOPS = (4, 20)
SERVER = "10.87.0.250"
PORT = 2222


class Net(NamedTuple):
    """Where the nodes are: namespaces called `prefix-N`, on a bridge."""

    prefix: str
    folder: Path

    def words(self, node: int | str) -> list[str]:
        """What runs a command on a node."""
        return ["ip", "netns", "exec", f"{self.prefix}-{node}"]


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


def plug(net: Net, name: int | str, address: str) -> None:
    """One more namespace, whose link takes MEGABITS each way."""
    space, inside, outside = f"{net.prefix}-{name}", "eth0", f"{net.prefix}{name}"
    run("ip", "netns", "add", space)
    run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
    run("ip", "link", "set", outside, "master", net.prefix, "up")
    run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", inside)
    run("ip", "-n", space, "link", "set", "lo", "up")
    run("ip", "-n", space, "link", "set", inside, "up")
    limit = ["root", "tbf", "rate", f"{MEGABITS}mbit", "burst", "128kb", "latency", "20ms"]
    run("tc", "qdisc", "add", "dev", outside, *limit)
    run("tc", "-n", space, "qdisc", "add", "dev", inside, *limit)


@contextlib.contextmanager
def network(nodes: int) -> Iterator[Net]:
    prefix = f"sb{os.getpid() % 100000}"
    with tempfile.TemporaryDirectory(prefix="serried-bench-") as folder:
        net = Net(prefix, Path(folder))
        try:
            run("ip", "link", "add", prefix, "type", "bridge")
            run("ip", "link", "set", prefix, "up")
            plug(net, "s", SERVER)
            for node in range(nodes):
                plug(net, node, f"10.87.0.{node + 1}")
            server = serve(net)
            try:
                yield net
            finally:
                server.terminate()
                server.wait()
        finally:
            for name in ("s", *range(nodes)):
                subprocess.run(["ip", "netns", "del", f"{prefix}-{name}"], check=False, capture_output=True)
            subprocess.run(["ip", "link", "del", prefix], check=False, capture_output=True)


def serve(net: Net) -> subprocess.Popen[bytes]:
    """An sshd that gives away the source."""
    Path("/run/sshd").mkdir(exist_ok=True)
    for key in ("host", "user"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", net.folder / key)
    said = {
        "ListenAddress": f"{SERVER}:{PORT}",
        "HostKey": net.folder / "host",
        "AuthorizedKeysFile": net.folder / "user.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "PermitRootLogin": "prohibit-password",
        "UsePAM": "no",
        "Subsystem": "sftp internal-sftp",
    }
    settings = net.folder / "sshd_config"
    settings.write_text("".join(f"{name} {value}\n" for name, value in said.items()))
    return subprocess.Popen([*net.words("s"), "/usr/sbin/sshd", "-D", "-f", settings], stderr=subprocess.DEVNULL)


def plant(there: Path) -> None:
    (there / "small").mkdir(parents=True)
    for number in range(FILES):
        (there / "small" / str(number)).write_bytes(os.urandom(BYTES // 6 // FILES))
    (there / "large").write_bytes(os.urandom(BYTES - BYTES // 6))


class Node:
    """The process that has the data on a node, told by us what its agent would tell it."""

    def __init__(self, place: Path, source: Path, *, address: str, before: Sequence[str] = ()) -> None:
        """`before` is what enters the node."""
        place.mkdir(parents=True, exist_ok=True)
        (place / "shared").mkdir(mode=0o700)
        self._end, theirs = socket.socketpair()
        words = [*before, sys.executable, "-m", "serried.agent", "stage-in"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self._process = subprocess.Popen(words, stdin=theirs, env=environment)
        theirs.close()
        self._lines = self._end.makefile("r")
        self._place, self.address = place, address
        said = {"items": [[str(source), "set", ""]], "in_place": [], "hashed": False, "limit": 0, "has_disk": True}
        where = {"view": str(place / "view"), "shared": str(place / "shared" / "data"), "serves": address, "node": 0}
        self.tell(do="prepare", key=b"key".hex(), mark="x", run="x", **said, **where)
        self.port = self.hear("ready")["port"]

    def tell(self, **message: object) -> None:
        self._end.sendall(json.dumps(message).encode() + b"\n")

    def begin(self, before: Node | None) -> None:
        self.tell(do="stage", before=before and [before.address, before.port])

    def hear(self, what: str) -> dict[str, Any]:
        for line in self._lines:
            message: dict[str, Any] = json.loads(line)
            assert message["say"] != "failed", message
            if message["say"] == what:
                return message
        raise AssertionError("it went without a word")

    def end(self) -> None:
        self.tell(do="release")
        assert self._process.wait() == 0
        self._end.close()
        shutil.rmtree(self._place)


def took(nodes: Sequence[Node], *, chain: bool) -> float:
    """Seconds until the last of them has all."""
    began = time.perf_counter()
    for node, before in zip(nodes, [None, *nodes], strict=False):
        node.begin(before if chain else None)
    for node in nodes:
        node.hear("staged")
    seconds = time.perf_counter() - began
    for node in nodes:
        node.end()
    return seconds


def behind_links(net: Net, count: int, *, chain: bool) -> float:
    """With what they read mounted anew on each."""
    key = net.folder / "user"
    secure = f"ssh -i {key} -p {PORT} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    nodes = []
    for number in range(count):
        place = net.folder / f"node-{number}"
        (place / "there").mkdir(parents=True)
        mount = f"sshfs -o ssh_command='{secure}' {SERVER}:{net.folder}/there {place}/there && exec \"$@\""
        enter = [*net.words(number), "unshare", "-m", "bash", "-c", mount, "bash"]
        nodes.append(Node(place, place / "there", address=f"10.87.0.{number + 1}", before=enter))
    return took(nodes, chain=chain)


def each_hop(folder: Path) -> float:
    """Seconds that one node more takes for something small, beside the others on this machine."""
    (folder / "small").mkdir()
    for number in range(10):
        (folder / "small" / str(number)).write_bytes(os.urandom(100_000))
    times = {count: [] for count in HOPS}
    for _ in range(5):
        for count in HOPS:
            nodes = [Node(folder / str(number), folder / "small", address="127.0.0.1") for number in range(count)]
            times[count].append(took(nodes, chain=True))
    few, many = HOPS
    return (statistics.median(times[many]) - statistics.median(times[few])) / (many - few)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="serried-bench-") as folder:
        hop = each_hop(Path(folder))
    with network(max(NODES)) as net:
        plant(net.folder / "there")
        behind_links(net, 1, chain=False)
        each = {count: behind_links(net, count, chain=False) for count in NODES}
        chain = {count: behind_links(net, count, chain=True) for count in NODES}
    figures = [
        Figure(
            f"{BYTES // 10**6} MB to {count} nodes behind links of {MEGABITS} Mbit/s",
            f"{chain[count]:.1f} s, {chain[count] / chain[1]:.2f} of one node",
            f"each reads it: {each[count]:.1f} s, {each[count] / each[1]:.2f} of one node",
            "≤ 1.25 of one node",
            chain[count] <= 1.25 * chain[1],
        )
        for count in NODES[1:]
    ]
    figures.append(
        Figure(
            "one more node in a chain, 1 MB in 10 files, all on this machine",
            f"{1000 * hop:.1f} ms",
            "",
            "≤ 20 ms: 20 s with 1,000 nodes",
            hop <= 0.02,
        )
    )
    record("Data to many nodes", figures)


if __name__ == "__main__":
    main()
