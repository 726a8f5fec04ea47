"""A node's side of a job script: the ranks that its launchers start here.

These ranks do not decide how the run ends: the script may handle their failures. The agents keep their logs, send them
the stop notice and TERM, and report the failed ones. On the first node the agent also reports the end of the script, as
that of the run's only rank.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import local_socket, rank_identity, shell_functions
from serried.agent.outcome.diagnose import read_tail
from serried.agent.ranks import command
from serried.agent.ranks.ranks import Exit, Rank, Ranks, has_failed
from serried.base import files
from serried.base.json_lines import Message
from serried.schema import failure_report, launcher_env, names
from serried.schema.events import FromLaunched, JournalEvent, ToHead, ToLaunched, ToNode

if TYPE_CHECKING:
    from serried.agent.launchers.node_side import NodeServices

SOURCES = tuple(source for source in launcher_env.SOURCES if source is not launcher_env.SERRIED)
"""Serried's own variables are in the environment of the script, whatever its ranks are."""


class RankOfLaunch(NamedTuple):
    identity: rank_identity.RankIdentity
    launch: str
    within: str
    """The rank of the outer launch; empty without one."""
    is_needed: bool
    """As `rank_identity.is_needed` says."""
    log: Path

    @property
    def outer(self) -> Tuple[str, str]:
        """The launch and the rank in which it was launched."""
        return self.launch.rpartition(".")[0], self.within


class ScriptRank(Rank):
    """A rank of a launch."""

    def __init__(self, launched: RankOfLaunch, pid: int, mode: int) -> None:
        identity, log = launched.identity, launched.log
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
        except OSError:  # a full quota must not end the agent
            descriptor = os.open(os.devnull, os.O_WRONLY)
        super().__init__(identity.rank, identity.local_rank or 0, pid, descriptor)
        self.launched = launched
        self.launch = launched.launch
        self.path = log
        self.world_size = identity.world_size or 1


class _Connection:
    """To a rank program."""

    def __init__(self, line: local_socket.LocalSocket) -> None:
        self.socket = line
        self.launched: Optional[RankOfLaunch] = None
        self.rank: Optional[ScriptRank] = None
        """Its program, while that runs."""


class ScriptNode(Ranks):
    """It is done when the script has ended."""

    def __init__(
        self, work: Attempt, node: int, variables: Dict[str, Any], agent: NodeServices, *, rank_socket: str
    ) -> None:
        super().__init__(work, node, variables["stop_file"])
        self._agent = agent
        self._place = command.RankPlace(node=node, rank=0, local_rank=0, threads=0, **variables)
        self._connections: List[_Connection] = []
        self._unreaped: List[Exit] = []
        self._numbered: Dict[str, int] = {}
        """How many ranks without a number of their own each launch has started here."""
        self._reported: Set[str] = set()
        """Launches with a reported failure: the output of the first tells most."""
        self._lacking: Set[Tuple[str, str]] = set()
        """The ranks, by launch and number, in which a rank failed that others need."""
        self._is_stopping = self._has_script_ended = False
        try:
            for listener in local_socket.listen(rank_socket):
                agent.loop.watch(listener, partial(self._accept, listener))
        except OSError as error:
            agent.log_event(JournalEvent.LAUNCHED_RANKS_HAVE_NO_LOGS, because=str(error))

    # The script.

    @property
    def have_ended(self) -> bool:
        """The end of the script ends its ranks; but if the attempt is being ended, these have time to save."""
        return self._has_script_ended and not (self._is_stopping and self._running)

    @property
    def may_leave_processes(self) -> bool:
        return True

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:  # noqa: ARG002 - they belong to no rank
        ended, self._unreaped = self._unreaped, []
        self.exits += ended
        return ended

    def on_message(self, message: Message) -> None:
        if message["do"] == ToNode.SCRIPT_ENDED:
            self._end(message["exit"])
        elif message["do"] == ToNode.END_LAUNCH:
            self._end_launch(message["launch"], signal.SIGTERM, message["because"])
            self._agent.loop.after(message["grace"], partial(self._end_launch, message["launch"], signal.SIGKILL))

    def on_head_lost(self) -> None:
        self._end(None)

    def _end(self, exit_: Optional[Exit]) -> None:
        if self._has_script_ended:
            return
        self._has_script_ended = True
        if exit_ is not None and self.node == 0:
            self._unreaped.append(exit_)
        self._agent.reap()

    # Its ranks.

    def _of_launch(self, launch: str) -> List[ScriptRank]:
        """The running ranks of a launch, and of those within it."""
        ranks = (rank for rank in self.running if isinstance(rank, ScriptRank))
        return [rank for rank in ranks if f"{rank.launch}.".startswith(f"{launch}.")]

    def _end_launch(self, launch: str, number: int, because: str = "") -> None:
        for rank in self._of_launch(launch):
            if because:
                with contextlib.suppress(OSError):
                    os.write(rank.log, f"serried: ending this rank, because {because}\n".encode())
            rank.stop(number, everything=True)

    def _report_whether_runs(self, launch: str, *, before: int) -> None:
        """Report the first start and the last end of ranks of a launch of the script. `before`: how many ran."""
        now = len(self._of_launch(launch))
        if bool(now) != bool(before):
            self._agent.send(ToHead.LAUNCH_RUNS, launch=launch, runs=bool(now))

    def _accept(self, listener: socket.socket) -> None:
        accepted = local_socket.accept(listener)
        if accepted is not None:
            connection = _Connection(accepted)
            self._connections.append(connection)
            self._agent.loop.watch(accepted.connection, lambda: self._receive(connection))

    def _receive(self, connection: _Connection) -> None:
        messages = connection.socket.receive()
        if messages is None:
            self._agent.loop.forget(connection.socket.connection)
            connection.socket.connection.close()
            self._connections.remove(connection)
            if connection.rank is not None:  # killed, and its program with it
                self._on_ended(connection, {"status": signal.SIGKILL, "problem": None, "signal": 0, "oom": False})
            return
        for message in messages:
            if message["event"] == FromLaunched.PROGRAM_WAITS:
                self._on_waits(connection, message)
            elif message["event"] == FromLaunched.RANK_STARTED:
                self._on_started(connection, message["pid"])
            elif message["event"] == FromLaunched.RANK_ENDED:
                self._on_ended(connection, message)

    def _on_waits(self, connection: _Connection, message: Message) -> None:
        if self._is_stopping or self._has_script_ended:
            connection.socket.send({"do": ToLaunched.REFUSE, "because": "the attempt is being ended"})
            return
        work, environ, launch = self.work, message["environ"], message["launch"]
        identity = rank_identity.read(SOURCES, environ, 0)
        if identity is None:
            count = self._numbered.get(launch, 0)
            self._numbered[launch] = count + 1
            identity = rank_identity.RankIdentity(self.node + count * work.nodes, None, count, 0)
        within = environ.get(names.LAUNCH_RANK, "") if "." in launch else ""
        is_alone = identity.world_size in (None, 1) and within
        log = work.directory.attempt(work.number).launch_log(
            self.node, launch, identity.rank, int(within) if is_alone else None
        )
        connection.launched = RankOfLaunch(identity, launch, within, rank_identity.is_needed(environ), log)
        with contextlib.suppress(OSError):  # the rank program runs without a log
            files.make_directory(log.parent, work.directory_mode)
        place = self._place._replace(rank=identity.rank, local_rank=identity.local_rank or 0)
        variables: Dict[str, Optional[str]] = dict(command.variables_of_node(work, place))
        variables[names.LAUNCH_RANK] = str(identity.rank)
        variables[names.FAILURE_REPORT] = failure_report.place_of(self._stop_file, identity.rank, launch, within)
        answer = {"do": ToLaunched.RUN, "environment": variables, "log": str(log), "mode": work.file_mode}
        connection.socket.send({**answer, "detached": self._attachment() if message["is_detached"] else None})

    def _attachment(self) -> Dict[str, Any]:
        """What a rank that the scheduler starts does not inherit from the script."""
        attempt = self.work.directory.attempt(self.work.number)
        shims = shell_functions.folder(attempt.path)
        inherited = command.visible(self.work, system.environment())
        of_script = names.put(inherited, command.environment(self.work, self._place, inherited))
        own = {**shell_functions.variables(shims), names.LAUNCHES: str(attempt.launches)}
        if of_script.get("BASH_ENV"):
            own[names.USER_BASH_ENV] = of_script["BASH_ENV"]
        variable = next(iter(self.work.plan.site.dialect.job_variables), "")
        own.update({names.SCRIPT_JOB: f"{variable}={os.environ[variable]}"} if variable in os.environ else {})
        return {"environment": names.put(of_script, own), "bin": str(shims / "bin"), "output": str(attempt.script_log)}

    def _on_started(self, connection: _Connection, pid: int) -> None:
        launched = connection.launched
        if launched is None:
            return
        rank = ScriptRank(launched, pid, self.work.file_mode)
        of_script = launched.launch.partition(".")[0]
        before = len(self._of_launch(of_script))
        connection.rank = self._running[pid] = rank
        self._report_whether_runs(of_script, before=before)
        self._lacking.discard(launched.outer)
        restarts = launched.identity.incarnation
        if restarts:
            facts = {"launch": launched.launch, "within": launched.within, "restarts": restarts}
            self._agent.send(ToHead.LAUNCHED_RANK_RESTARTED, **facts)
        self.leaders.append(pid)
        facts = {"rank": rank.number, "local_rank": rank.local_rank, "pid": pid, "launch": rank.launch}
        self._agent.log_event(JournalEvent.LAUNCHED_RANK_STARTED, **facts)
        if self._is_stopping:
            self.terminate()

    def _on_ended(self, connection: _Connection, message: Message) -> None:
        rank = connection.rank
        if rank is None:
            return
        launched, of_script = rank.launched, rank.launch.partition(".")[0]
        before = len(self._of_launch(of_script))
        connection.rank = None
        self._running.pop(rank.pid, None)
        problem = tuple(message["problem"]) if message["problem"] else None
        exit_ = self.record(rank, message["status"], problem, is_oom=message["oom"])
        exit_["ended_by_us"] = exit_["ended_by_us"] or bool(message["signal"])
        exit_.update(launch=rank.launch, within=launched.within, restarts=launched.identity.incarnation)
        exit_["needed"] = (rank.launch, str(rank.number)) in self._lacking
        self._agent.log_event(JournalEvent.LAUNCHED_RANK_ENDED, **exit_)
        if has_failed(exit_) and not exit_["ended_by_us"]:
            if launched.is_needed:
                self._lacking.add(launched.outer)
            tail = [] if rank.launch in self._reported else read_tail(rank.path)
            if not exit_.get("stumbled"):
                self._reported.add(rank.launch)
            self._agent.send(ToHead.LAUNCHED_RANK_FAILED, exit=exit_, tail=tail)
        self._report_whether_runs(of_script, before=before)
        self._agent.reap()

    def log_path(self, rank: Rank) -> Path:
        return rank.path if isinstance(rank, ScriptRank) else super().log_path(rank)

    def _place_of_reports(self, rank: Rank) -> str:
        within = rank.launched.within if isinstance(rank, ScriptRank) else ""
        return failure_report.place_of(self._stop_file, rank.number, rank.launch, within)

    def world_size_of(self, rank: Rank) -> int:
        return rank.world_size if isinstance(rank, ScriptRank) else super().world_size_of(rank)

    def notify(self, name: Optional[str]) -> None:
        script = self.work.plan.script
        super().notify(None if script and script.notice_to == "script" else name)

    def terminate(self) -> None:
        self._is_stopping = True
        super().terminate()

    def kill(self) -> None:
        self._is_stopping = True
        super().kill()
