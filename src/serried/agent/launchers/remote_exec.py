"""What runs on this node because a launcher on some node has asked for it, and who waits for what runs elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Work
from serried.agent.comms.channel import Message
from serried.agent.launchers import local_socket, rank_identity
from serried.agent.launchers.kinds import Start, mpi
from serried.agent.loop import Loop
from serried.agent.ranks import command

END_SECONDS = 10.0
"""Between TERM and KILL for what nobody waits for any more."""


class Ask(NamedTuple):
    """Names a command on all nodes: which node asked, and its how-manieth it is."""

    node: int
    number: int


class Remotes:
    def __init__(self, work: Work, node: int, loop: Loop, tell: Callable[..., None]) -> None:
        self._work = work
        self._node = node
        self._loop = loop
        self._tell = tell
        self._hosts: Sequence[str] = ()
        self._place: Optional[command.Place] = None
        self._folder = Path()
        self._asked = 0
        self._waiting: Dict[Ask, local_socket.Line] = {}
        self._running: Dict[Ask, system.Child] = {}

    def begin(self, place: command.Place, hosts: Sequence[str], folder: Path) -> None:
        """Before anybody asks: what this node tells its ranks, the names of all nodes, and its private folder."""
        self._place, self._hosts, self._folder = place, hosts, folder

    # Of those who ask on this node.

    def ask(self, line: local_socket.Line, host: str, words: str) -> None:
        node = find(host, self._hosts)
        if node is None:
            line.send({"refused": f"`{host}` is no node of this attempt: {', '.join(self._hosts)}"})
            return
        self._asked += 1
        ask = Ask(self._node, self._asked)
        self._waiting[ask] = line
        self._send(node, "run", ask, command=words)

    def forget(self, line: local_socket.Line) -> None:
        """Nobody waits at this line any more."""
        for ask in [ask for ask, waiting in self._waiting.items() if waiting is line]:
            del self._waiting[ask]
            for node in range(self._work.nodes):
                self._send(node, "end", ask)

    # Between the nodes.

    def _send(self, node: int, what: str, ask: Ask, **facts: Any) -> None:
        message = {"what": what, "ask": list(ask), **facts}
        if node == self._node:
            self.heed(message)
        else:
            self._tell("relay", to=node, message={"do": "remote", **message})

    def heed(self, message: Message) -> None:
        ask = Ask(*message["ask"])
        if message["what"] == "run":
            self._run(ask, message["command"])
        elif message["what"] == "end":
            self._end(ask)
        elif ask in self._waiting:
            self._waiting.pop(ask).send({"exited": message["status"]})

    # Of what runs on this node.

    def _run(self, ask: Ask, words: str) -> None:
        assert self._place is not None  # noqa: S101 - nobody asks before `begin`
        start = Start([], mpi.temporary(self._folder / f"{ask.node}-{ask.number}"), without=mpi.OF_ANOTHER_STEP)
        log = os.open(
            self._work.place.attempt(self._work.number).launcher_log(self._node),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND,
            self._work.file_mode,
        )
        null = os.open(os.devnull, os.O_RDONLY)
        self._running[ask] = system.spawn(
            ["/bin/sh", "-c", words],
            rank_identity.of_starter(self._work, self._place, start),
            (null, log, log),
            directory=str(self._work.workdir),
            parent_death=signal.SIGKILL,
            own_group=True,
        )
        os.close(null)
        os.close(log)

    def _end(self, ask: Ask) -> None:
        if ask in self._running:
            self._signal(ask, signal.SIGTERM)
            self._loop.after(END_SECONDS, lambda: self._signal(ask, signal.SIGKILL))

    def kill(self) -> None:
        for ask in self._running:
            self._signal(ask, signal.SIGKILL)

    def _signal(self, ask: Ask, number: signal.Signals) -> None:
        if ask in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._running[ask].pid, number)

    def reap(self, children: Iterable[Tuple[int, int]]) -> None:
        statuses = dict(children)
        ended: List[Ask] = [ask for ask, child in self._running.items() if child.pid in statuses]
        for ask in ended:
            child = self._running.pop(ask)
            child.problem()
            status = statuses[child.pid]
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self._send(ask.node, "exited", ask, status=code)


def find(host: str, hosts: Sequence[str]) -> Optional[int]:
    """The index of `host`, by its whole name, else by the name before the first dot."""
    if host in hosts:
        return hosts.index(host)
    short = [name.partition(".")[0] for name in hosts]
    wanted = host.partition(".")[0]
    return short.index(wanted) if short.count(wanted) == 1 else None
