"""The ranks of one node where a launcher starts them: received, told what to run, heard, let go.

A rank that has ended stays in the launcher's eyes until all ranks of all nodes have, or the attempt is being ended: so
it is us who end the others, with their grace, as where no launcher is. Only a launcher that may start failed ranks
again is told of a failure at once; it is not one until the launcher gives up.
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import kinds, launcher_process, rank_identity
from serried.agent.launchers.listener import RankConnection, RankEvents, RankListener
from serried.agent.launchers.remote_exec import RemoteExec
from serried.agent.loop import Loop
from serried.agent.outcome.evidence import AS_ASKED
from serried.agent.ranks import binding, command, program
from serried.agent.ranks.ranks import Exit, Rank, Ranks, has_failed
from serried.protocol.events import JournalEvent, ToHead, ToNode
from serried.protocol.json_lines import Message

LAST_SECONDS = 2.0
"""From a launcher's TERM to its KILL, when none of its ranks is left."""


class NodeServices(NamedTuple):
    """What the node agent lends."""

    loop: Loop
    send: Callable[..., None]
    """Say something to the head."""
    log_event: Callable[..., None]
    """Write it into this node's journal."""
    changed: Callable[[], None]
    """Something has ended: look."""


class LaunchedRanks(Ranks):
    def __init__(
        self, work: Attempt, node: int, variables: Dict[str, Any], kind: kinds.LauncherKind, services: NodeServices
    ) -> None:
        super().__init__(work, node, variables["stop_file"])
        self._variables = variables
        self._kind = kind
        self._services = services
        self._shares = binding.shares(work.ranks)
        self._listener: Optional[RankListener] = None
        self._remote_exec = RemoteExec(work, node, services.loop, services.send)
        self._unreaped: List[Exit] = []
        """Not yet told by `reap`."""
        self._excused: Dict[int, Exit] = {}
        """Failures that the launcher may make good."""
        self._has_begun = False
        self._is_stopping = False
        self._is_released = False
        self._was_killed = False
        """A launcher, by a signal."""
        self._have_all_launchers_ended = False
        """No launcher runs any more, on any node."""
        self._launcher: Optional[launcher_process.LauncherProcess] = None
        self._launcher_exit: Optional[Dict[str, Any]] = None

    def begin(self, rank_socket: str, hosts: Sequence[str], address: str, folder: Path) -> None:
        """Open the door, then start the launcher if it is this node's to start."""
        threads = binding.threads(self.work)
        place = command.RankPlace(node=self.node, rank=0, local_rank=0, threads=threads, **self._variables)
        self._remote_exec.begin(place, hosts, folder)
        events = RankEvents(self._on_identified, self._on_started, self._on_ended, self._on_lost)
        try:
            self._listener = RankListener(self._services.loop, rank_socket, events, self._remote_exec)
        except OSError as error:
            self._services.send(
                ToHead.LAUNCHER_PROBLEM, message=f"cannot receive ranks on {socket.gethostname()}: {error}"
            )
            return
        if not (self._kind.everywhere or self.node == 0):
            return
        context = kinds.LaunchContext(
            work=self.work,
            node=self.node,
            hosts=hosts,
            master=self._variables["master"],
            address=address,
            port=self._variables["port"],
            rank=launcher_process.rank_command(self.work, self._kind, system.agent_command("rank", rank_socket)),
            folder=folder,
            remote=system.agent_command("remote", rank_socket),
        )
        self._launcher = launcher_process.start(self._kind, context, place)
        self._services.log_event(JournalEvent.LAUNCHING, argv=self._launcher.command, pid=self._launcher.pid)

    @property
    def _connections(self) -> List[RankConnection]:
        return self._listener.connections if self._listener else []

    # Who comes.

    def _on_identified(self, connection: RankConnection, environ: Dict[str, str]) -> None:
        identity = rank_identity.read(self._kind.sources, environ, self.work.nodes * self.work.ranks)
        alive = {other.number: other.incarnation for other in self._connections if not other.has_ended}
        problem = rank_identity.problem_with(self.work, self._kind.sources, identity, alive)
        if problem or self._is_stopping or self._is_released:
            connection.socket.send({"refused": problem or "the attempt is being ended"})
            if problem:
                self._services.send(ToHead.LAUNCHER_PROBLEM, message=problem)
            return
        assert identity is not None  # noqa: S101 - `objection` would have said so
        connection.number, connection.incarnation = identity.rank, identity.incarnation
        connection.local_rank = self._free_local_rank() if identity.local_rank is None else identity.local_rank
        self._clear_earlier_exit(connection)
        cpus = self._shares[connection.local_rank] if connection.local_rank < len(self._shares) else []
        threads = binding.threads(self.work)
        place = command.RankPlace(
            node=self.node, rank=connection.number, local_rank=connection.local_rank, threads=threads, **self._variables
        )
        rank_program = program.of(
            self.work, place, rank_identity.rank_environment(self.work, environ), is_inside=self._kind.is_inside
        )
        request = {
            "argv": rank_program.argv,
            "environment": rank_program.environment,
            "directory": str(self.work.workdir),
            "log": str(self.log_of(connection.number)),
            "mode": self.work.file_mode,
            "cpus": cpus,
        }
        connection.socket.send({"run": request})

    def _free_local_rank(self) -> int:
        used = {connection.local_rank for connection in self._connections}
        return next(local_rank for local_rank in range(len(self._connections) + 1) if local_rank not in used)

    def _clear_earlier_exit(self, connection: RankConnection) -> None:
        """It is started again: what became of it before does not count."""
        self.exits = [exit_ for exit_ in self.exits if exit_["rank"] != connection.number]
        self._unreaped = [exit_ for exit_ in self._unreaped if exit_["rank"] != connection.number]
        before = self._excused.pop(connection.number, None)
        if before is not None:
            self._services.log_event(JournalEvent.RANK_RESTARTED, **before)
            with self.log_of(connection.number).open("ab") as log:
                log.write(f"serried: {self.work.launcher} starts this rank again\n".encode())

    def _on_started(self, connection: RankConnection, pid: int) -> None:
        rank = Rank(connection.number, connection.local_rank, pid, self.open_log(connection.number))
        connection.rank = self._running[pid] = rank
        self.leaders.append(pid)
        if not self._has_begun:
            self._has_begun = True
            self._services.send(ToHead.STARTED)
        self._services.log_event(JournalEvent.STARTED, rank=rank.number, local_rank=rank.local_rank, pid=pid)
        self._services.send(ToHead.RANK_STARTED, rank=rank.number)
        if self._is_stopping:
            self.terminate()

    # How they end.

    def _on_ended(self, connection: RankConnection, message: Dict[str, Any]) -> None:
        connection.has_ended = True
        problem = tuple(message["problem"]) if message["problem"] else None
        exit_ = self.record(self._forget(connection), message["ended"], problem, is_oom=message["oom"])
        self._finish_rank(connection, exit_, was_told=bool(message["told"]))

    def _on_lost(self, connection: RankConnection) -> None:
        """If its program had not ended, somebody killed the guest, and its program with it."""
        if connection.is_starting and not connection.has_ended:
            exit_ = self.record(self._forget(connection), signal.SIGKILL, None, is_oom=False)
            self._finish_rank(connection, {**exit_, "vanished": True}, was_told=self._is_stopping)

    def _forget(self, connection: RankConnection) -> Rank:
        """Its program does not run any more, or never began."""
        rank = connection.rank or Rank(connection.number, connection.local_rank, 0, self.open_log(connection.number))
        self._running.pop(rank.pid, None)
        return rank

    def _finish_rank(self, connection: RankConnection, exit_: Exit, *, was_told: bool) -> None:
        """`was_told`: the launcher has sent it a signal, or the attempt is being ended: it did not end by itself."""
        exit_["ended_by_us"] = exit_["ended_by_us"] or was_told
        may_return = self._may_restart(connection, exit_)
        if may_return:
            self._excused[connection.number] = exit_
            self._services.log_event(JournalEvent.RANK_EXCUSED, **exit_)
        else:
            self._unreaped.append(exit_)
            taken = was_told and not self._is_stopping
            self._services.send(ToHead.RANK_ENDED, rank=connection.number, well=not has_failed(exit_), taken=taken)
        if may_return or self._is_released:
            self._release_rank(connection)
        self._services.changed()

    def _may_restart(self, connection: RankConnection, exit_: Exit) -> bool:
        most = int(self.work.plan["launch"]["max_restarts"])
        if not has_failed(exit_) or connection.incarnation >= most or self._is_stopping:
            return False
        return not (self.are_notified and exit_["exit_code"] in AS_ASKED)

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:
        self._remote_exec.reap(children)
        for pid, status in children:
            if self._launcher and pid == self._launcher.pid:
                self._on_launcher_exit(self._launcher, status)
        ended, self._unreaped = self._unreaped, []
        self.exits += ended
        return ended

    def _on_launcher_exit(self, launcher: launcher_process.LauncherProcess, status: int) -> None:
        launcher.set_exited(status)
        self._was_killed = bool(launcher.status and launcher.status < 0)
        self._report_excused()
        self._launcher_exit = launcher.exit_facts()

    def _report_excused(self) -> None:
        """Nobody makes good what has failed any more."""
        for number in self._excused:
            self._services.send(ToHead.RANK_ENDED, rank=number, well=False, taken=self._excused[number]["ended_by_us"])
        self._unreaped += self._excused.values()
        self._excused.clear()

    def report_launcher_exit(self, *, all_sent: bool) -> None:
        if self._launcher_exit and (
            all_sent or self._was_killed
        ):  # whether it was decides on how ranks elsewhere ended
            self._services.log_event(JournalEvent.LAUNCHER_EXITED, **self._launcher_exit)
            self._services.send(ToHead.LAUNCHER_EXITED, **self._launcher_exit)
            self._launcher_exit = None

    @property
    def have_ended(self) -> bool:
        return not self._running and not self._is_launcher_running

    @property
    def _is_launcher_running(self) -> bool:
        return self._launcher.is_running if self._launcher else not self._have_all_launchers_ended

    def on_message(self, message: Message) -> None:
        if message["do"] == ToNode.REMOTE:
            self._remote_exec.on_message(message)
        elif message["do"] == ToNode.RELEASE:
            self._release_ranks(message["patience"])
        elif message["do"] == ToNode.LAUNCHERS_EXITED:
            self._have_all_launchers_ended = True
            self._was_killed = message["killed"]

    def on_head_lost(self) -> None:
        self._have_all_launchers_ended = True
        self._release_ranks(self.work.grace_seconds)

    def was_killed_by_launcher(self, exit_: Exit) -> bool:
        return bool(exit_.get("vanished")) and self._was_killed

    # The end.

    def _release_ranks(self, timeout: float) -> None:
        """Let the launcher see how its ranks have ended; it has `patience` seconds to end itself."""
        if self._is_released:
            return
        self._is_released = True
        failed = any(has_failed(exit_) for exit_ in [*self.exits, *self._unreaped])
        if failed and self.work.plan["launch"]["max_restarts"] and self._launcher:  # it would begin anew
            self._launcher.terminate()
        for connection in [connection for connection in self._connections if connection.has_ended]:
            self._release_rank(connection)
        self._end_launcher(timeout)

    def _release_rank(self, connection: RankConnection) -> None:
        connection.socket.send({"leave": True})

    def terminate(self) -> None:
        self._stop()
        super().terminate()

    def abort(self) -> None:
        self._stop()
        super().abort()

    def _stop(self) -> None:
        self._is_stopping = True
        self._report_excused()

    def kill(self) -> None:
        self._is_stopping = True
        super().kill()
        self._remote_exec.kill()
        self._release_ranks(0.0)
        self._end_launcher(0.0)

    def _end_launcher(self, timeout: float) -> None:
        """TERM after `patience` seconds, KILL soon after."""
        if self._launcher:
            self._services.loop.after(timeout, self._launcher.terminate)
            self._services.loop.after(timeout + LAST_SECONDS, self._launcher.kill)
