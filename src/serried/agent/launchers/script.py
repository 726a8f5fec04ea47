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
import time
from functools import partial
from typing import Any, Dict, List, Optional, Set, Tuple, cast

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import kinds, shell_functions
from serried.agent.launchers.node_side import ConnectedRanks, NodeServices, RankConnection
from serried.agent.outcome.diagnose import read_tail
from serried.agent.ranks import command
from serried.agent.ranks.ranks import ForkedRanks, Rank, catches
from serried.base import files, linux
from serried.base.channel import Message
from serried.base.text import show_duration
from serried.schema import codec, failure_report, launchers, names
from serried.schema.endings import FailedCall, Launches, ScriptLaunched, documents_in, launch_documents
from serried.schema.events import FromLaunched, JournalEvent, ToHead, ToLaunched, ToNode
from serried.schema.exits import Exit
from serried.schema.plan import UserScript
from serried.schema.reasons import Reason


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
    return launch.partition(".")[0]


def how_it_failed(exit_: Exit) -> str:
    return f"rank {exit_.rank} of launch {exit_.launch} on {exit_.host} {exit_.how}"


class ScriptProcess(ForkedRanks):
    def __init__(self, attempt: Attempt, place: Dict[str, Any], address: str) -> None:
        """Start the script. Ranks connect to the agents of their nodes at `address`."""
        self._directory = attempt.directory.attempt(attempt.number)
        self._address = address
        self.launches = ScriptLaunches()
        super().__init__(attempt, 0, place)

    def _start_all(self, place: Dict[str, Any]) -> None:
        attempt, script = self.attempt, cast("UserScript", self.attempt.plan.script)
        for path in os.environ.get(names.SCRIPT_LOGS, "").splitlines():
            link_log(attempt, path)
        rank = command.RankPlace(node=0, rank=names.SCRIPT_RANK, local_rank=0, threads=0, **place)
        program = command.program(attempt, rank)
        after_login = os.environ.get(names.SCRIPT_UMASK)
        self._start(
            rank,
            program._replace(environment=self._with_shims(program.environment)),
            input_file=str(attempt.workdir / script.input) if script.input else "",
            umask=int(after_login, 8) if after_login else script.umask,
        )

    def _with_shims(self, environment: Dict[str, str]) -> Dict[str, str]:
        """The environment in which launchers are intercepted; as it was if nothing can run in the run directory."""
        folder = shell_functions.folder(self._directory.path)
        try:
            files.make_directory(self._directory.launches, self.attempt.directory_mode)
            variables = shell_functions.write(folder, system.agent_command("")[:-1], self._address)
            problem = "" if os.access(folder / "rank", os.X_OK) else f"`{folder}` does not allow programs"
        except OSError as error:
            problem = str(error)
        if problem:
            system.log(f"launchers in the script are not intercepted: {problem}")
            return environment
        path = os.pathsep.join([str(folder / "bin"), environment.get("PATH", os.defpath)])
        own = {**variables, names.LAUNCHES: str(self._directory.launches), "PATH": path}
        if environment.get("BASH_ENV"):
            own[names.USER_BASH_ENV] = environment["BASH_ENV"]
        return names.put(environment, own)

    def send_notice(self, name: Optional[str]) -> Optional[str]:
        """Send the notice to the script itself if it has a trap. A shell without one would die of the signal.

        Return the signal if the script got it, or if only its ranks get it.
        """
        self.are_notified = True
        script = cast("UserScript", self.attempt.plan.script)
        if not name or script.notice_to == "ranks":
            return name
        number = int(getattr(signal, f"SIG{name}"))
        for rank in self.running:
            if catches(rank.pid, number):
                self._notice = number
                system.send_signal(rank.pid, number)
        return name if self._notice else None

    def terminate(self) -> None:
        """Send TERM to the script and its programs, except launchers: these would kill ranks that still save.

        The agents send TERM to the ranks, and a launcher ends after its ranks.
        """
        here, launches = os.uname().nodename, launch_documents(self._directory.launches)
        launchers = {launch["pid"] for launch in launches if launch.get("host") == here}
        for rank in self.running:
            for pid in linux.group_members(rank.pid) or [rank.pid]:
                if pid == rank.pid or pid not in launchers:
                    system.send_signal(pid, signal.SIGTERM)
            rank.stop(0, everything=False)

    def all_launches(self) -> Launches:
        """The newest launches, and failed calls, first those that count."""
        launches = launch_documents(self._directory.launches)[-MOST_RECORDED:]
        failures = documents_in(self._directory.launches / "failures")
        failures.sort(key=lambda document: (bool(document.get("handled")), float(document["time"])))
        return Launches(
            tuple(codec.known(ScriptLaunched, launch) for launch in launches),
            tuple(map(self._failed_call, failures[:MOST_RECORDED])),
        )

    def _failed_call(self, failure: Dict[str, Any]) -> FailedCall:
        words = shlex.join([str(failure.get("name")), *map(str, failure.get("argv") or ())])
        # From the start of the script to the failure: by the wall clock if that was on another node.
        if failure.get("host") == os.uname().nodename:
            seconds = float(failure.get("monotonic") or 0) - self._began_at
        else:
            seconds = float(failure.get("time") or 0) - (time.time() - (time.monotonic() - self._began_at))
        return codec.known(FailedCall, failure)._replace(
            words=words[:LONGEST_LINE],
            within=(failure.get("within") or {}).get("launch"),
            seconds=round(max(seconds, 0.0), 3),
        )


MOST_RECORDED = 1000
LONGEST_LINE = 200


def link_log(attempt: Attempt, path: str) -> None:
    """Let `path`, where the user expects the script's output, be a link to the log, unless something else is there."""
    link, log = attempt.workdir / path, attempt.directory.attempt(attempt.number).script_log
    try:
        if link.is_symlink() and link.readlink().name == log.name:  # of an earlier attempt or run
            link.unlink()
        link.symlink_to(log)
    except OSError as error:
        because = os.strerror(error.errno or 0).lower()
        system.log(f"`{link}` does not lead to the script's output ({because}): see {log}")


SOURCES = tuple(source for source in launchers.SOURCES if source is not launchers.SERRIED)
"""Serried's own variables are in the environment of the script, whatever its ranks are."""


class ScriptNode(ConnectedRanks):
    """It is done when the script has ended."""

    def __init__(
        self, attempt: Attempt, node: int, variables: Dict[str, Any], agent: NodeServices, *, rank_socket: str
    ) -> None:
        super().__init__(attempt, node, variables, agent, threads=0)
        self._numbered: Dict[str, int] = {}
        """How many ranks without a number of their own each launch has started here."""
        self._reported: Set[str] = set()
        """Launches with a reported failure: the output of the first tells most."""
        self._lacking: Set[Tuple[str, str]] = set()
        """The ranks, by launch and number, in which a rank failed that others need."""
        self._has_script_ended = False
        try:
            self._listen(rank_socket)
        except OSError as error:
            agent.log_event(JournalEvent.LAUNCHED_RANKS_HAVE_NO_LOGS, because=str(error))

    @property
    def have_ended(self) -> bool:
        """The end of the script ends its ranks; but if the attempt is being ended, these have time to save."""
        return self._has_script_ended and not (self._is_stopping and self._running)

    @property
    def may_leave_processes(self) -> bool:
        return True

    def on_message(self, message: Message) -> None:
        if message["do"] == ToNode.SCRIPT_ENDED:
            self._on_script_ended(Exit.from_json(message["exit"]) if message["exit"] else None)
        elif message["do"] == ToNode.END_LAUNCH:
            self._end_launch(message["launch"], signal.SIGTERM, message["because"])
            self._agent.loop.after(message["grace"], partial(self._end_launch, message["launch"], signal.SIGKILL))

    def on_head_lost(self) -> None:
        self._on_script_ended(None)

    def _on_script_ended(self, exit_: Optional[Exit]) -> None:
        if self._has_script_ended:
            return
        self._has_script_ended = True
        if exit_ is not None and self.node == 0:
            self._unreaped.append(exit_)
        self._agent.reap()

    def _of_launch(self, launch: str) -> List[Rank]:
        """The running ranks of a launch, and of those within it."""
        return [rank for rank in self.running if f"{rank.launch}.".startswith(f"{launch}.")]

    def _end_launch(self, launch: str, number: int, because: str = "") -> None:
        for rank in self._of_launch(launch):
            if because:
                with contextlib.suppress(OSError):
                    os.write(rank.log, f"serried: ending this rank, because {because}\n".encode())
            rank.stop(number, everything=True)

    def _on_first_message(self, connection: RankConnection, message: Message) -> None:
        if message.get("event") != FromLaunched.PROGRAM_WAITS:
            return
        if self._is_stopping or self._has_script_ended:
            connection.refuse("the attempt is being ended")
            return
        attempt, environ, launch = self.attempt, message["environ"], message["launch"]
        identity = kinds.read(SOURCES, environ, 0)
        if identity is None:
            count = self._numbered.get(launch, 0)
            self._numbered[launch] = count + 1
            identity = kinds.RankIdentity(self.node + count * attempt.nodes, None, count, 0)
        number, local_rank = identity.rank, identity.local_rank or 0
        within = environ.get(names.LAUNCH_RANK, "") if "." in launch else ""
        is_alone = identity.world_size in (None, 1) and within
        directory = attempt.directory.attempt(attempt.number)
        path = directory.launch_log(self.node, launch, number, int(within) if is_alone else None)
        try:
            files.make_directory(path.parent, attempt.directory_mode)
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, attempt.file_mode)
        except OSError:  # a full quota: the rank runs without a log
            log = os.open(os.devnull, os.O_WRONLY)
        connection.rank = rank = Rank(number, local_rank, 0, log)
        rank.launch, rank.within, rank.path = launch, within, path
        rank.restarts, rank.world_size = identity.incarnation, identity.world_size or 1
        rank.is_needed = kinds.is_needed(environ)
        variables = command.variables_of_node(attempt, self._place._replace(rank=number, local_rank=local_rank))
        variables[names.LAUNCH_RANK] = str(number)
        variables[names.FAILURE_REPORT] = failure_report.place_of(self._stop_file, number, launch, within)
        answer = {"do": ToLaunched.RUN, "environment": variables, "log": str(path), "mode": attempt.file_mode}
        connection.socket.send({**answer, "detached": self._attachment() if message["is_detached"] else None})

    def _attachment(self) -> Dict[str, Any]:
        """What a rank that the scheduler starts does not inherit from the script."""
        directory = self.attempt.directory.attempt(self.attempt.number)
        shims = shell_functions.folder(directory.path)
        inherited = command.visible(self.attempt, system.environment())
        of_script = names.put(inherited, command.environment(self.attempt, self._place, inherited))
        own = {**shell_functions.variables(shims), names.LAUNCHES: str(directory.launches)}
        if of_script.get("BASH_ENV"):
            own[names.USER_BASH_ENV] = of_script["BASH_ENV"]
        variable = next(iter(self.attempt.plan.site.dialect.job_variables), "")
        own.update({names.SCRIPT_JOB: f"{variable}={os.environ[variable]}"} if variable in os.environ else {})
        return {
            "environment": names.put(of_script, own),
            "bin": str(shims / "bin"),
            "output": str(directory.script_log),
        }

    def _on_started(self, rank: Rank) -> None:
        of_script = _of_script(rank.launch)
        if len(self._of_launch(of_script)) == 1:  # its first
            self._agent.send(ToHead.LAUNCH_RUNS, launch=of_script, runs=True)
        self._lacking.discard(_outer(rank))
        if rank.restarts:
            facts = {"launch": rank.launch, "within": rank.within, "restarts": rank.restarts}
            self._agent.send(ToHead.LAUNCHED_RANK_RESTARTED, **facts)
        facts = {"rank": rank.number, "local_rank": rank.local_rank, "pid": rank.pid, "launch": rank.launch}
        self._agent.log_event(JournalEvent.LAUNCHED_RANK_STARTED, **facts)

    def _on_ended(self, connection: RankConnection, rank: Rank, exit_: Exit, message: Message) -> None:  # noqa: ARG002
        was_starting = self._is_stopping and not rank.pid  # so `terminate` did not know its process
        exit_ = exit_._replace(
            ended_by_us=exit_.ended_by_us or was_starting or bool(message["signal"]),
            launch=rank.launch,
            within=rank.within,
            restarts=rank.restarts,
            needed=(rank.launch, str(rank.number)) in self._lacking,
        )
        self._agent.log_event(JournalEvent.LAUNCHED_RANK_ENDED, **exit_.to_json())
        if exit_.has_failed and not exit_.ended_by_us:
            if rank.is_needed:
                self._lacking.add(_outer(rank))
            tail = [] if rank.launch in self._reported else read_tail(self.log_path(rank))
            if not exit_.stumbled:
                self._reported.add(rank.launch)
            self._agent.send(ToHead.LAUNCHED_RANK_FAILED, exit=exit_.to_json(), tail=tail)
        of_script = _of_script(rank.launch)
        if rank.pid and not self._of_launch(of_script):  # it was its last
            self._agent.send(ToHead.LAUNCH_RUNS, launch=of_script, runs=False)

    def notify(self, name: Optional[str]) -> None:
        script = self.attempt.plan.script
        super().notify(None if script and script.notice_to == "script" else name)


def _outer(rank: Rank) -> Tuple[str, str]:
    return rank.launch.rpartition(".")[0], rank.within
