"""The role `check`: a process beside a node's agent that looks at the node and at its connections to the others.

Each check runs in a thread of its own: one that hangs with a driver or a file system is reported, and does not delay
the others. A run depends on this process only with `preflight`.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

from serried.agent import system
from serried.agent.checks import facts
from serried.agent.checks.peers import PeerAddress, PeerServer, PeerTest
from serried.agent.helper_process import AgentConnection
from serried.agent.sampling import gpus
from serried.base.channel import Message
from serried.base.text import spell
from serried.schema import codec
from serried.schema.events import ToHead, ToHelper, ToNode

TICK_SECONDS, TICKS, VERSIONS_TICKS, PEER_TICKS, NAMES_TICKS = 0.1, 50, 100, 150, 10
"""The limit of a check is counted in ticks: where this process gets little of a CPU, they take longer."""

MEMORY_SECONDS = 50.0
MEMORY_POLL_SECONDS = 2.0
MOST_HELD_BYTES = 512 << 20
"""Less than this may stay in use on an idle GPU."""


def main(arguments: List[str]) -> int:  # noqa: ARG001 - roles have arguments
    connection = AgentConnection()
    order: Message = {}
    for message in connection.messages():
        if message["do"] == ToNode.CHECK_PEERS:
            rendezvous = (order["master"], message["port"]) if message["port"] else None
            peers = [codec.from_json(PeerAddress, peer) for peer in message["peers"]]
            test = PeerTest(bytes.fromhex(order["key"]), order["node"], peers)
            test.begin(rendezvous)
            patiently(PEER_TICKS, test.done.wait)
            patiently(NAMES_TICKS, test.are_named.wait)
            connection.send(event=ToHead.PEER_FACTS, facts=codec.to_json(test.finish()))
        elif message["do"] == ToHelper.CHECK_AGAIN:
            connection.send(unfit=look_again(message))
        else:
            order = message
            connection.send(event=ToHead.NODE_FACTS, facts=look(order))
    os._exit(0)  # a thread may hang in the kernel


def patiently(ticks: int, wait: Callable[[float], Any]) -> None:
    """Call `wait` with the length of a tick until it returns true."""
    for _ in range(ticks):
        if wait(TICK_SECONDS):
            return


def look(order: Mapping[str, Any]) -> Dict[str, Any]:
    fields: Dict[str, Any] = {"node": order["node"], "hostname": os.uname().nodename, "chosen": order["chosen"]}
    try:
        if order["nodes"] > 1:
            fields["port"] = PeerServer(bytes.fromhex(order["key"]), order["node"], order["nodes"]).port
    except OSError as error:
        fields["problem"] = f"cannot listen for other nodes: {error.strerror}"
    ranks_python = _start_python(order)
    checks: Dict[str, Callable[[], Dict[str, Any]]] = {
        "connections": lambda: {"addresses": facts.addresses()},
        "names": lambda: {"own_name": facts.own_name()},
        "memlock": lambda: {"limits": facts.limits()},
        "shared-memory": lambda: {"shm": facts.space(facts.SHARED_MEMORY), "stale_bytes": facts.stale_bytes()},
        "disk": lambda: {"disk": facts.space(order["disk"])},
        "root": lambda: {"root": facts.space(order["root"])},
        "root-visible": lambda: {"claim": _claim(order["claim"])},
        "infiniband": lambda: {"ports": facts.ports()},
        "versions": lambda: {"versions": {**facts.system_versions(), **_versions_of(ranks_python)}},
    }
    if order["has_gpus"]:
        checks["gpu-memory"] = lambda: {
            "gpus": facts.gpus(order["gpus"], lambda pid: gpus.is_marked(pid, order["mark"]))
        }
    found, failed, silent = run(checks)
    facts_: Dict[str, Any] = codec.to_json({**fields, **found, "failed": failed, "silent": silent})
    return facts_


def look_again(order: Mapping[str, Any]) -> str:
    """What keeps this node from another round; empty if nothing does. Waits for the memory of its GPUs."""
    from serried.agent.checks import judge

    until = time.monotonic() + MEMORY_SECONDS
    while order["has_gpus"]:
        found, _, silent = run({"memory": lambda: {"held": facts.unclaimed_bytes(order["gpus"])}})
        held = {gpu: size for gpu, size in found.get("held", {}).items() if size >= MOST_HELD_BYTES}
        if silent:
            return "the GPU driver gave no answer"
        if not held or (order["is_shared"] and time.monotonic() >= until):
            break
        if time.monotonic() >= until:
            gpu, size = next(iter(held.items()))
            return f"GPU {gpu} still has {spell(size)} in use {MEMORY_SECONDS:.0f} s after its processes ended"
        time.sleep(MEMORY_POLL_SECONDS)
    if not order["is_suspect"]:
        return ""
    checks: Dict[str, Callable[[], Dict[str, Any]]] = {
        "root-visible": lambda: {"claim": facts.claim(order["claim"])},
        "infiniband": lambda: {"ports": facts.ports()},
    }
    if order["has_gpus"]:
        checks["gpu-memory"] = lambda: {"gpus": facts.gpus(order["gpus"], lambda _: False)}
    found, failed, silent = run(checks)
    return judge.why_unfit(facts.NodeFacts(0, failed=failed, silent=tuple(silent), **found), order["ports"])


def run(checks: Mapping[str, Callable[[], Dict[str, Any]]]) -> Any:
    """All fields of the checks together, the error of each that failed by its id, and those that gave no answer."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work(name: str, check: Callable[[], Dict[str, Any]]) -> None:
        try:
            answers.put((name, check(), ""))
        except Exception as error:  # noqa: BLE001 - whatever is odd on this node is a fact
            answers.put((name, {}, getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"))

    for name, check in checks.items():
        threading.Thread(target=work, args=(name, check), daemon=True).start()
    fields: Dict[str, Any] = {}
    failed: Dict[str, str] = {}
    left = dict(checks)

    def wait(seconds: float) -> bool:
        try:
            name, found, error = answers.get(timeout=seconds)
        except queue.Empty:
            return False
        fields.update(found)
        failed.update({name: error} if error else {})
        del left[name]
        return not left

    patiently(TICKS + len(checks), wait)
    if list(left) == ["versions"]:  # the ranks' Python may load from a slow file system for the first time
        patiently(VERSIONS_TICKS, wait)
    return fields, failed, list(left)


def _claim(path: str) -> str:
    """Tries again for a while: a node may learn of new files late."""
    for _ in range(TICKS - 5):
        try:
            return facts.claim(path)
        except (OSError, ValueError):
            time.sleep(TICK_SECONDS)
    return facts.claim(path)


def _start_python(order: Mapping[str, Any]) -> Optional[int]:
    """Start the ranks' Python, which prints its versions. Returns the pipe to read them from; None without a Python."""
    variables = {**system.environment(), **order["variables"]}
    program = find_python(order["command"], order["workdir"], variables.get("PATH", os.defpath))
    if not program:
        return None
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    argv = [program, "-c", facts.PYTHON_PROGRAM]
    system.spawn(argv, variables, (null, writer, null), directory="/", parent_death=signal.SIGKILL)
    os.close(null)
    os.close(writer)
    return reader


def find_python(command: str, workdir: str, path: str) -> str:
    """The ranks' Python, as far as the first word of their command shows it. Empty for none, as in a container."""
    if not command:
        return ""
    first = command if Path(command).name.startswith("python") else "python"
    if "/" in first:
        return str(Path(workdir, first))
    candidates = (f"{folder}/{name}" for name in (first, "python3") for folder in path.split(os.pathsep))
    return next((file for file in candidates if os.access(file, os.X_OK)), "")


def _versions_of(reader: Optional[int]) -> Dict[str, str]:
    text = b""
    while reader is not None and (part := os.read(reader, 4096)):
        text += part
    return json.loads(text) if text.strip() else {}
