"""Nodes as Linux namespaces on one bridge: each has its own address, host name, mounts, limits and clock.

Needs root, `ip`, `nsenter`, and `nft` for firewalls. The namespaces end with the processes that hold them, and these
with their standard input: nothing is left, even if this process is killed. `node_spaces.py WORLD COMMAND…` stands in
for srun: it runs COMMAND on each node.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PROBLEM, NOTE = "problem", "note"

NODE = "NODE_OF_SPACE"
GET_FD = 438  # pidfd_getfd
MEMORY, DISK = "8g", "4g"
"""Sizes of /dev/shm and of the disk of a node: of what is used only."""


class Fault(NamedTuple):
    """What is wrong, where, and which findings name it."""

    kind: str
    ids: tuple[str, ...] = ()
    """The checks that may name it."""
    hosts: tuple[int, ...] = ()
    """The nodes to blame; empty for all."""
    lines: Mapping[int, str] = {}
    """Shell lines that prepare a node. $PLACE is a folder that all nodes share, $RUN the run directory."""
    rules: str = ""
    """Of a firewall between the nodes, for nft; `{0}` is the address of the first node. It never cuts agents off."""
    words: Mapping[int, tuple[str, ...]] = {}
    """What runs the agent of a node."""
    variables: Mapping[str, str] = {}
    """Of the ranks."""
    levels: tuple[str, ...] = (PROBLEM, NOTE)
    """Of the findings that may name it."""
    drops_rendezvous: bool = False
    stops: tuple[str, int] | None = None
    """A role of the agent, and the node where its process is stopped."""


def host(node: int) -> str:
    return f"node{node}"


def address(node: int) -> str:
    return f"10.88.0.{node + 1}"


class Space:
    """A process in namespaces of its own, which end with it."""

    def __init__(self, kinds: Sequence[str], script: str) -> None:
        words = ["unshare", *kinds, "sh", "-euc", f"echo here\nread -r _\n{script}\necho ready\nread -r _ || true"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._expect("here")

    @property
    def pid(self) -> int:
        return self.process.pid

    def prepare(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._expect("ready")

    def _expect(self, line: str) -> None:
        assert self.process.stdout
        if self.process.stdout.readline().strip() != line:
            raise OSError(f"namespaces are not to be had, or cannot be prepared: {shlex.join(self.process.args)}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


def inside(pid: int, *kinds: str) -> list[str]:
    return ["nsenter", "-t", str(pid), *(kinds or ("--net", "--mount", "--uts")), "--"]


SETUP = """
hostname {host}
mount -t tmpfs -o size={memory} memory /dev/shm
mount -t tmpfs -o size={disk} disk "$PLACE/disk"
mount --bind "$PLACE/hosts" /etc/hosts
mkdir -p /dev/shm/sys && mount -t sysfs sys /dev/shm/sys
mount --bind /dev/shm/sys/class/net /sys/class/net
mount --bind /dev/shm/sys/devices/virtual/net /sys/devices/virtual/net
umount -l /dev/shm/sys && rmdir /dev/shm/sys
ip link set lo up
ip addr add {address}/24 dev eth0
ip link set eth0 up
"""
FIREWALL = """
table bridge faults {{
  chain dropped {{
    type filter hook forward priority 0;
    tcp sport {port} accept
    tcp dport {port} accept
    {rules}
  }}
}}
"""


@contextlib.contextmanager
def nodes(count: int, place: Path, fault: Fault, run: Path) -> Iterator[list[int]]:
    """The processes that hold them. Raises OSError where this user may make no namespaces."""
    (place / "disk").mkdir()
    lines = ["127.0.0.1 localhost", *(f"{address(node)} {host(node)}" for node in range(count))]
    (place / "hosts").write_text("\n".join([*lines, ""]))
    with contextlib.ExitStack() as stack:
        switch = _space(stack, ["--net"], "ip link add name lan type bridge\nip link set lan up")
        switch.prepare()
        spaces = []
        for node in range(count):
            about = {"host": host(node), "address": address(node), "memory": MEMORY, "disk": DISK}
            own = f"PLACE={shlex.quote(str(place))}\nRUN={shlex.quote(str(run))}"
            lines = [own, SETUP.format(**about), fault.lines.get(node, "")]
            spaces.append(_space(stack, ["--net", "--mount", "--uts"], "\n".join(lines)))
        links = []
        for node, space in enumerate(spaces):
            links.append(f"link add name p{node} type veth peer name eth0 netns {space.pid}")
            links.append(f"link set p{node} master lan up")
        enter = inside(switch.pid, "--net")
        subprocess.run([*enter, "ip", "-batch", "-"], input="\n".join([*links, ""]), text=True, check=True)
        for space in spaces:
            space.prepare()
        pids = [space.pid for space in spaces]
        facts = {"switch": switch.pid, "pids": pids, "drops_rendezvous": fault.drops_rendezvous, "stops": fault.stops}
        facts["rules"] = fault.rules.format(*map(address, range(count)))
        facts["words"] = [fault.words.get(node, ()) for node in range(count)]
        (place / "world.json").write_text(json.dumps(facts))
        yield pids


def _space(stack: contextlib.ExitStack, kinds: Sequence[str], script: str) -> Space:
    space = Space(kinds, script)
    stack.callback(space.end)
    return space


def firewall(switch: int, rules: str) -> None:
    """Spares the connections of agents to the head."""
    text = FIREWALL.format(rules=rules, port=os.environ["SERRIED_HEAD"].rpartition(":")[2])
    subprocess.run([*inside(switch, "--net"), "nft", "-f", "-"], input=text, text=True, check=True)


def dead_rendezvous(switch: int, head: int) -> None:
    """Drop what nodes send to the port that the head reserves for rank 0: bound there, and not listening."""
    pidfd = os.pidfd_open(head)
    for name in Path(f"/proc/{head}/fd").iterdir():
        with contextlib.suppress(OSError, ValueError):
            number = ctypes.CDLL(None, use_errno=True).syscall(GET_FD, pidfd, int(name.name), 0)
            with socket.socket(fileno=number) as found:
                is_listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if found.family == socket.AF_INET and found.type == socket.SOCK_STREAM and not is_listening:
                    firewall(switch, f"ip daddr {address(0)} tcp dport {found.getsockname()[1]} drop")


def stop_child(parent: int, role: str) -> bool:
    """Stop the process of an agent that has this role; False while there is none."""
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if role in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            os.kill(int(pid), signal.SIGSTOP)
            return True
    return False


def main(world: Path, command: Sequence[str]) -> int:
    facts = json.loads(world.read_text())
    if "sweep" in command:  # job.sh asks for it after lost nodes
        return 0
    if facts["rules"]:
        firewall(facts["switch"], facts["rules"])
    if facts["drops_rendezvous"]:
        dead_rendezvous(facts["switch"], os.getppid())
    children = []
    for node, pid in enumerate(facts["pids"]):
        words = [*inside(pid), *facts["words"][node], *command]
        children.append(subprocess.Popen(words, env={**os.environ, NODE: str(node)}))
    signal.signal(signal.SIGTERM, lambda *_: [child.terminate() for child in children])
    role, node = facts["stops"] or ("", 0)
    while role and children[node].poll() is None:
        with contextlib.suppress(OSError):
            if stop_child(children[node].pid, role):
                break
        time.sleep(0.01)
    return max(abs(child.wait()) for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
