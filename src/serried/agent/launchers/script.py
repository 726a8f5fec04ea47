"""The user's job script. A run with `script` has it instead of ranks.

The head starts the script (`ScriptProcess`): as a child of job.sh it has the environment, control group and GPUs that
the scheduler gives to a batch script. Launchers that it calls are intercepted (`interception`), and their ranks connect
to the agents of their nodes (`ScriptNode`).

These ranks do not decide how the run ends: the script may handle their failures. The agents keep their logs, send them
the stop notice and TERM, and report the failed ones. On the first node the agent also reports the end of the script, as
that of the run's only rank.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, cast

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import kinds, local_socket, shell_functions
from serried.agent.outcome.diagnose import read_tail
from serried.agent.ranks import command
from serried.agent.ranks.ranks import ForkedRanks, Rank, Ranks, catches
from serried.base import files, linux
from serried.base.channel import Message
from serried.base.text import show_duration
from serried.schema import failure_report, launchers, names
from serried.schema.events import FromLaunched, JournalEvent, ToHead, ToLaunched, ToNode
from serried.schema.exits import Exit
from serried.schema.plan import UserScript
from serried.schema.reasons import Reason

if TYPE_CHECKING:
    from serried.agent.launchers.node_side import NodeServices


class ScriptLaunches:
    """Which launches of the script run, and which of their ranks have failed and were not started again."""

    def __init__(self) -> None:
        self._nodes: Dict[str, Set[int]] = {}
        """The nodes on which ranks of a launch run."""
        self._failures: List[Tuple[float, Exit]] = []
        """By time."""

    def on_message(self, node: int, host: str, now: float, message: Message) -> None:
        event = message["event"]
        if event == ToHead.LAUNCH_RUNS:
            nodes = self._nodes.setdefault(message["launch"], set())
            (nodes.add if message["runs"] else nodes.discard)(node)
            if not nodes:
                del self._nodes[message["launch"]]
                self._failures = [it for it in self._failures if _of_script(it[1].launch) != message["launch"]]
        elif event == ToHead.LAUNCHED_RANK_FAILED:
            exit_ = Exit.from_json(message["exit"])._replace(host=host)
            self._failures += [] if exit_.stumbled else [(now, exit_)]
        elif event == ToHead.LAUNCHED_RANK_RESTARTED:
            key, restarts = (host, message["launch"], message["within"]), message["restarts"]
            self._failures = [
                (at, exit_)
                for at, exit_ in self._failures
                if (exit_.host, exit_.launch, exit_.within) != key or exit_.restarts >= restarts
            ]

    @property
    def running(self) -> List[str]:
        return list(self._nodes)

    def warnings(self, now: float) -> List[Dict[str, Any]]:
        """The first failed rank of each launch that runs."""
        firsts: Dict[str, Tuple[float, Exit]] = {}
        for failure in self._failures:
            firsts.setdefault(_of_script(failure[1].launch), failure)
        return [
            {
                "code": Reason.RANK_FAILED,
                "message": f"{how_it_failed(exit_)} {show_duration(int(now - at))} ago,"
                f" and other ranks of launch {launch} still run",
                "ranks": [exit_.rank],
            }
            for launch, (at, exit_) in firsts.items()
            if launch in self._nodes
        ]


def _of_script(launch: str) -> str:
    """The launch of the script in which a launch is."""
    return launch.partition(".")[0]


def how_it_failed(exit_: Exit) -> str:
    return f"rank {exit_.rank} of launch {exit_.launch} on {exit_.host} {exit_.how}"


class ScriptProcess(ForkedRanks):
    def __init__(self, work: Attempt, place: Dict[str, Any], address: str) -> None:
        """Start the script. Ranks connect to the agents of their nodes at `address`."""
        Ranks.__init__(self, work, 0, place["stop_file"])
        self._prepare()
        script = cast("UserScript", work.plan.script)
        after_login = os.environ.get(names.SCRIPT_UMASK)
        self._umask, self._input = int(after_login, 8) if after_login else script.umask, script.input
        self._gets_notice = script.notice_to != "ranks"
        self._attempt = work.directory.attempt(work.number)
        self._address = address
        self.launches = ScriptLaunches()
        for path in os.environ.get(names.SCRIPT_LOGS, "").splitlines():
            link_log(work, path)
        self._add(command.RankPlace(node=0, rank=names.SCRIPT_RANK, local_rank=0, threads=0, **place), [])

    def _program(self, place: command.RankPlace) -> command.Program:
        program = super()._program(place)
        return program._replace(environment=self._with_shims(program.environment))

    def _with_shims(self, environment: Dict[str, str]) -> Dict[str, str]:
        """The environment in which launchers are intercepted; as it was if nothing can run in the run directory."""
        folder = shell_functions.folder(self._attempt.path)
        try:
            files.make_directory(self._attempt.launches, self.work.directory_mode)
            variables = shell_functions.write(folder, system.agent_command("")[:-1], self._address)
        except OSError as error:
            system.log(f"launchers in the script are not intercepted: {error}")
            return environment
        if not os.access(folder / "rank", os.X_OK):
            system.log(f"launchers in the script are not intercepted: `{folder}` does not allow programs")
            return environment
        path = os.pathsep.join([str(folder / "bin"), environment.get("PATH", os.defpath)])
        own = {**variables, names.LAUNCHES: str(self._attempt.launches), "PATH": path}
        if environment.get("BASH_ENV"):
            own[names.USER_BASH_ENV] = environment["BASH_ENV"]
        return names.put(environment, own)

    def _open_input(self) -> int:
        with contextlib.suppress(OSError):
            if self._input:
                return os.open(self.work.workdir / self._input, os.O_RDONLY)
        return super()._open_input()

    def send_notice(self, name: Optional[str]) -> Optional[str]:
        """Send the notice to the script itself if it has a trap. A shell without one would die of the signal.

        Return the signal if the script got it, or if only its ranks get it.
        """
        self.are_notified = True
        if not name or not self._gets_notice:
            return name
        number = int(getattr(signal, f"SIG{name}"))
        for rank in self.running:
            if catches(rank.pid, number):
                self._notice = number
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(rank.pid, number)
        return name if self._notice else None

    def terminate(self) -> None:
        """Send TERM to the script and its programs, except launchers: these would kill ranks that still save.

        The agents send TERM to the ranks, and a launcher ends after its ranks.
        """
        launchers = self._launcher_pids()
        for rank in self.running:
            for pid in linux.group_members(rank.pid) or [rank.pid]:
                if pid == rank.pid or pid not in launchers:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGTERM)
            rank.stop(0, everything=False)

    def _launcher_pids(self) -> Set[int]:
        here = os.uname().nodename
        return {document["pid"] for document in read_launches(self._attempt.launches) if document.get("host") == here}

    @property
    def running_numbers(self) -> List[int]:
        return [rank.number for rank in self.running]

    def launch_facts(self) -> Dict[str, Any]:
        """The fields of JournalEvent.LAUNCHES: the newest launches, and failed calls, first those that count."""
        launches = read_launches(self._attempt.launches)
        failures = _documents(self._attempt.launches / "failures")
        failures.sort(key=lambda document: (bool(document.get("handled")), float(document.get("time") or 0)))
        return {
            "launches": [
                {key: document.get(key) for key in ("launch", "name", "kind", "untouched", "call")}
                for document in launches[-MOST_RECORDED:]
            ],
            "failures": [
                {
                    **{
                        key: document.get(key)
                        for key in ("call", "status", "handled", "read", "signalled", "name", "line", "output", "time")
                    },
                    "words": shlex.join([str(document.get("name")), *map(str, document.get("argv") or ())])[
                        :LONGEST_LINE
                    ],
                    "within": (document.get("within") or {}).get("launch"),
                    "seconds": self._seconds_until(document),
                }
                for document in failures[:MOST_RECORDED]
            ],
        }

    def _seconds_until(self, failure: Dict[str, Any]) -> float:
        """From the start of the script to a failure; by the wall clock if that was on another node."""
        if failure.get("host") == os.uname().nodename:
            seconds = float(failure.get("monotonic") or 0) - self._began_at
        else:
            seconds = float(failure.get("time") or 0) - (time.time() - (time.monotonic() - self._began_at))
        return round(max(seconds, 0.0), 3)


MOST_RECORDED = 1000
LONGEST_LINE = 200


def read_launches(folder: Path) -> List[Dict[str, Any]]:
    """The documents of all launches, in the order of their start; of one that several ranks started, all."""
    found = _documents(folder)
    for rank in sorted(folder.glob("[0-9]*/**/rank-*")):
        found += _documents(rank)
    return sorted(found, key=lambda document: float(document.get("time") or 0))


def _documents(folder: Path) -> List[Dict[str, Any]]:
    known = (files.read_json(path) for path in sorted(folder.glob("*.json")))
    return [document for document in known if isinstance(document, dict)]


def link_log(work: Attempt, path: str) -> None:
    """Let `path`, where the user expects the script's output, be a link to the log, unless something else is there."""
    link, log = work.workdir / path, work.directory.attempt(work.number).script_log
    try:
        if link.is_symlink() and link.readlink().name == log.name:  # of an earlier attempt or run
            link.unlink()
        link.symlink_to(log)
    except OSError as error:
        because = os.strerror(error.errno or 0).lower()
        system.log(f"`{link}` does not lead to the script's output ({because}): see {log}")


# A node's side.

SOURCES = tuple(source for source in launchers.SOURCES if source is not launchers.SERRIED)
"""Serried's own variables are in the environment of the script, whatever its ranks are."""


class RankOfLaunch(NamedTuple):
    identity: kinds.RankIdentity
    launch: str
    within: str
    """The rank of the outer launch; empty without one."""
    is_needed: bool
    """As `kinds.is_needed` says."""
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
        self.exits.update((exit_.rank, exit_) for exit_ in ended)
        return ended

    def on_message(self, message: Message) -> None:
        if message["do"] == ToNode.SCRIPT_ENDED:
            self._end(Exit.from_json(message["exit"]) if message["exit"] else None)
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
        identity = kinds.read(SOURCES, environ, 0)
        if identity is None:
            count = self._numbered.get(launch, 0)
            self._numbered[launch] = count + 1
            identity = kinds.RankIdentity(self.node + count * work.nodes, None, count, 0)
        within = environ.get(names.LAUNCH_RANK, "") if "." in launch else ""
        is_alone = identity.world_size in (None, 1) and within
        log = work.directory.attempt(work.number).launch_log(
            self.node, launch, identity.rank, int(within) if is_alone else None
        )
        connection.launched = RankOfLaunch(identity, launch, within, kinds.is_needed(environ), log)
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
        exit_ = exit_._replace(
            ended_by_us=exit_.ended_by_us or bool(message["signal"]),
            launch=rank.launch,
            within=launched.within,
            restarts=launched.identity.incarnation,
            needed=(rank.launch, str(rank.number)) in self._lacking,
        )
        self._agent.log_event(JournalEvent.LAUNCHED_RANK_ENDED, **exit_.to_json())
        if exit_.has_failed and not exit_.ended_by_us:
            if launched.is_needed:
                self._lacking.add(launched.outer)
            tail = [] if rank.launch in self._reported else read_tail(rank.path)
            if not exit_.stumbled:
                self._reported.add(rank.launch)
            self._agent.send(ToHead.LAUNCHED_RANK_FAILED, exit=exit_.to_json(), tail=tail)
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
