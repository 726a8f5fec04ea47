"""The head agent: starts an agent on each node, reads their messages, and decides when ranks stop.

`AgentLauncher` runs the scheduler's own launcher, and retries while the controller is away. `Monitor` checks the limit,
requests, heartbeats, the ranks, job.sh, and whether a later attempt has begun. Only the head receives requests from
job.sh and control.jsonl. Its journal alone tells how the attempt ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from serried.agent import notifications, system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.attempts import claims, deadline, history, successor_jobs
from serried.agent.attempts.deadline import Deadline
from serried.agent.checks.head_side import CheckCoordinator
from serried.agent.comms import job_environment, rendezvous
from serried.agent.comms.node_registry import NodeAgent, NodeRegistry
from serried.agent.launchers.head_side import Failure, LauncherCoordinator
from serried.agent.loop import Loop
from serried.agent.options import Options, parse
from serried.agent.stage_in.head_side import StageInCoordinator
from serried.base import files, linux
from serried.base.channel import Message
from serried.base.text import expand_hosts, fold_hosts
from serried.schema import checkpoints, names
from serried.schema.codec import facts_of, known
from serried.schema.endings import NodeEnded, NodeLost, Stopping, recovered_in
from serried.schema.events import JournalEvent, ToHead, ToNode
from serried.schema.exits import Exit
from serried.schema.reasons import Reason

if TYPE_CHECKING:
    from serried.agent.checks.pairs import PairsCoordinator
    from serried.agent.head.anomalies import Anomaly
    from serried.agent.head.hangs import Hang, HangWatch
    from serried.agent.head.live_file import LiveFile
    from serried.agent.head.rounds import Rounds
    from serried.agent.launchers.script import ScriptProcess
    from serried.agent.trials.search import TrialSearch
    from serried.schema.checks import Finding
    from serried.schema.endings import RoundBegun


RETRY_SECONDS = 120.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 15.0
STUCK_SECONDS = 30.0
"""An srun that calls within seconds of a controller's return may wait forever; an srun started later does not."""
KILL_SECONDS = 35.0
SWEEP_SECONDS = 10.0
LAST_LINES = 5
ANNOUNCEMENT = "***"
"""Slurm's mark of the line with the reason why it ends a step. Many lines of srun follow it."""


class AgentLauncher:
    """Runs `argv` and passes on its output. `on_exit` is called with its status."""

    def __init__(
        self, loop: Loop, argv: Sequence[str], changes: Mapping[str, str], on_exit: Callable[[int], None]
    ) -> None:
        self._loop, self._argv, self._on_exit = loop, list(argv), on_exit
        self._environment = {**system.environment(), **changes}
        self._child: Optional[system.Child] = None
        self._began = self._started = time.monotonic()
        self._pause = FIRST_PAUSE
        self._errors: Any = None
        self._partial = ""
        """The beginning of an incomplete line."""
        self.last_lines: List[str] = []
        """The end of its stderr: the only explanation when nothing starts."""

    @property
    def is_running(self) -> bool:
        return self._child is not None

    def start(self) -> None:
        self._started = time.monotonic()
        reader, writer = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        self._child = system.spawn(self._argv, self._environment, (null, 2, writer))
        os.close(null)
        os.close(writer)
        os.set_blocking(reader, False)
        self._errors = os.fdopen(reader, "rb", 0)
        self._loop.watch(self._errors, self._read_errors)

    def try_again(self) -> bool:
        """Start it again after a pause, longer each time; False if the time for retries is over."""
        if time.monotonic() - self._began + self._pause > RETRY_SECONDS:
            return False
        self._loop.after(self._pause, self.start)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True

    def end_if_stuck(self, setup_seconds: float) -> None:
        """End a launcher that has started no agent for too long; `on_exit` may start it again."""
        seconds = time.monotonic() - self._started - setup_seconds
        if seconds > STUCK_SECONDS:
            self.signal(signal.SIGKILL if seconds > KILL_SECONDS else signal.SIGTERM)

    def reap(self, children: Iterable[Tuple[int, int]]) -> None:
        """Call `on_exit` if it is among the `children` that have ended: (pid, wait status)."""
        for pid, status in children:
            if self._child and pid == self._child.pid:
                problem = self._child.problem()
                self._child = None
                self._read_errors()
                self._keep(self._partial)
                if problem:
                    self.last_lines = [f"{self._argv[0]}: {os.strerror(problem[1])}"]
                self._on_exit(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))

    def signal(self, number: signal.Signals) -> None:
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    def _read_errors(self) -> None:
        if self._errors is None:
            return
        text = self._errors.read()
        if text:
            with contextlib.suppress(OSError):  # the log may be on a full disk
                os.write(2, text)
            whole, newline, self._partial = (self._partial + text.decode("utf-8", "replace")).rpartition("\n")
            self._keep(whole + newline)
        elif text == b"":
            self._loop.forget(self._errors)
            self._errors.close()
            self._errors = None

    def _keep(self, text: str) -> None:
        lines = [*self.last_lines, *text.splitlines()]
        announced = [line for line in lines[:-LAST_LINES] if ANNOUNCEMENT in line]
        self.last_lines = [*announced[:LAST_LINES], *lines[-LAST_LINES:]]


def sweep_nodes(loop: Loop, argv: List[str], attempt: Attempt) -> None:
    """Start a new step that ends the processes of killed agents, as far as nodes still respond."""
    words = [attempt.process_tag, str(attempt.run.path), str(attempt.number)]
    words += [] if attempt.task is None else [str(attempt.task)]
    launcher = AgentLauncher(loop, [*argv, *system.agent_command("sweep", *words)], {}, lambda _: loop.stop())
    loop.on_signal(signal.SIGCHLD, lambda: launcher.reap(system.reap()))
    launcher.start()
    loop.after(SWEEP_SECONDS, loop.stop)
    loop.run()
    launcher.signal(signal.SIGKILL)


CONTROL_SECONDS = 2.0
CHECK_SECONDS = 5.0
SILENT_NODE_SECONDS = 60.0
REPLACED_SECONDS = 25.0
"""A node is replaced after so long without a message, if there are enough spare nodes."""
REPLACED_BEATS = 4
"""In attempts whose heartbeats are far apart, it is replaced after so many missing ones."""
UNCONNECTED_SECONDS = 120.0
"""Ranks that have not connected by then are reported, though they may be preparing data and connect later."""


class Monitor:
    def __init__(self, head: Head, nodes: NodeRegistry, deadline: Optional[Deadline]) -> None:
        self._head, self._loop, self._nodes, self._deadline = head, head.loop, nodes, deadline
        self._attempt = attempt = head.attempt
        self._parent = os.getppid()
        self._requests = history.Requests(attempt.files.control)
        self.is_orphaned = False
        """job.sh was killed."""
        self.is_superseded = False
        """A later attempt has begun."""
        self._may_be_unconnected = attempt.expects_connections
        self._silence_seconds = attempt.plan.limit.output_timeout_seconds

    def begin(self) -> None:
        heartbeat_seconds = self._attempt.heartbeat_seconds
        self._loop.every(CONTROL_SECONDS, self._read_control)
        self._loop.every(CHECK_SECONDS, self._check)
        self._loop.every(max(CHECK_SECONDS, heartbeat_seconds), partial(self._nodes.broadcast, ToNode.HEARTBEAT))
        if self._silence_seconds is not None:
            self._loop.every(heartbeat_seconds, partial(self.check_silence, float(self._silence_seconds)))
        if self._deadline:
            now, because = time.time(), "time limit"
            save = partial(self._head.ask_to_save, Reason.LIMIT, because)
            self._loop.after(max(0.0, self._deadline.warning - now), save)
            stop = partial(self._head.stop, Reason.LIMIT, because, self._deadline.grace)
            self._loop.after(max(0.0, self._deadline.end - now), stop)

    def ranks_began(self) -> None:
        self._loop.after(UNCONNECTED_SECONDS, self._check_connections)
        self._loop.after(CONTROL_SECONDS, _import_finalize)

    def on_contact(self, seen: Optional[bool]) -> None:
        """A node reports that ranks have connected to others; `seen` is None if the node cannot tell."""
        if self._may_be_unconnected:
            self._may_be_unconnected = False
            self._head.log_event(JournalEvent.RANKS_CONNECTED, seen=seen)

    def _check_connections(self) -> None:
        if self._may_be_unconnected and not self._nodes.are_done():
            from serried.agent.outcome.verdict import unconnected_message

            message = unconnected_message(self._attempt.nodes * self._attempt.ranks, UNCONNECTED_SECONDS)
            self._head.log_event(JournalEvent.RANKS_UNCONNECTED, message=message)
            system.log(f"warning: {message}")

    def _read_control(self) -> None:
        for request in self._requests.new():
            if isinstance(request, history.StacksRequest):
                self._head.request_stacks(request)
                continue
            stop = partial(self._head.stop, request.reason, grace=self._attempt.grace_seconds, by=request.by)
            if request.may_save:
                self._head.ask_to_save(request.reason, request.by, by=request.by)
                self._loop.after(self._attempt.warn_before_seconds, partial(stop, "not saved"))
            else:
                stop(request.by)

    def look_again(self) -> None:
        """Before ranks start again: has somebody stopped the run, or does it run elsewhere?"""
        self._read_control()
        self._check()

    def _check(self) -> None:
        self.check_parent()
        if not self.is_superseded and history.is_superseded(self._attempt):
            # The scheduler restarted the job elsewhere: two attempts must not write the same files.
            self.is_superseded = True
            self._head.log_event(JournalEvent.SUPERSEDED)
            self._head.stop(Reason.LOST, "a later attempt has begun", 0.0)
        now, limit = self._loop.awake(), SILENT_NODE_SECONDS
        silent = [it for it in self._nodes if not it.is_done and now - it.last_message_at > REPLACED_SECONDS]
        if silent and self._head.can_replace(silent):
            limit = min(limit, max(REPLACED_SECONDS, REPLACED_BEATS * self._attempt.heartbeat_seconds))
        for agent in silent:
            if now - agent.last_message_at > limit:
                self._head.on_node_lost(agent, Reason.NODE_SILENT, f"silent for {limit:.0f} s")

    def check_parent(self) -> None:
        """Record the end if job.sh was killed: it cannot run `finish`, and this process may be killed next.

        The scheduler kills ranks, agents and launchers too, in any order. So this check precedes any use of their ends.
        """
        if os.getppid() != self._parent and not self.is_orphaned:
            self.is_orphaned = True
            self._head.log_event(JournalEvent.ORPHANED)
            try:
                from serried.agent.attempts import finalize

                finalize.conclude(self._attempt)
            except OSError as error:  # the head tries again when the ranks have ended
                system.log(f"cannot conclude yet: {error}")
            self._head.stop(Reason.LOST, "job.sh ended", self._attempt.grace_seconds)

    def check_silence(self, limit_seconds: float) -> None:
        """Notify people after half of the plan's limit of silence, and end the ranks after all of it."""
        if self._head.is_stopping:
            return
        is_notified_now = False
        if self._nodes.silent_ranks(limit_seconds / 2):
            self._head.name_hang(limit_seconds)
            is_notified_now = notifications.notify(self._attempt, names.EVENT_STALL) is not None
        silent = self._nodes.silent_ranks(limit_seconds)
        if silent and not is_notified_now:  # else at the next beat: the notifying process would be killed with the job
            ranks, grace = ", ".join(map(str, silent)), self._attempt.grace_seconds
            self._head.stop(Reason.SILENCE, ranks, grace, ranks=silent, hung=self._head.hung)


def _import_finalize() -> None:
    """Before it is needed: where job.sh is killed, each millisecond counts."""
    from serried.agent.attempts import finalize  # noqa: F401


CONNECT_SECONDS = 120.0
SETUP_SECONDS = 600.0
"""How much longer nodes may take that load modules and run lines of `setup` before they connect."""
FAREWELL_SECONDS = 3.0
LEAVE_SECONDS = 13.0
"""For nodes to delete their files, with room to spare, and for launchers to report a lost node."""
EARLY_SECONDS = 65.0
"""Slurm's warning of the limit may come this much too early. An earlier warning has another reason."""
WRITE_SECONDS = 300.0
"""How long to retry writing the end on a full or unreachable disk; the scheduler may kill this process before."""
PUBLISH_SECONDS = 300.0
"""How long a round waits for nodes to copy complete checkpoints from their disks."""
OBEY_SECONDS = 8.0
"""How long after the grace a node may take to report that its ranks have ended."""
LOGGED = {
    ToHead.STARTED: JournalEvent.STARTED,
    ToHead.FAILED: JournalEvent.RANK_FAILED,
    ToHead.LAUNCHER_EXITED: ToHead.LAUNCHER_EXITED,
    ToHead.SIDE_COMMAND_FAILED: JournalEvent.SIDE_COMMAND_FAILED,
    ToHead.LAUNCHED_RANK_FAILED: JournalEvent.LAUNCHED_RANK_FAILED,
    ToHead.LAUNCHED_RANK_RESTARTED: JournalEvent.LAUNCHED_RANK_RESTARTED,
    ToHead.GPUS_IN_USE: JournalEvent.GPUS_IN_USE,
    ToHead.DONE: JournalEvent.NODE_ENDED,
}
"""Messages that are also entries of the journal."""
REPEATED = (Reason.FAILURE, Reason.SILENCE, Reason.LOST)
"""Reasons of stops after which another round may follow."""
LONG_SECONDS = 20.0
"""How long it may take to find out which rank hangs."""
OTHER_FILES = 32
"""In addition to a connection for each node, with room to spare."""


def _is_bad(agent: NodeAgent) -> bool:
    """Whether no ranks can be started there."""
    return agent.is_done or agent.is_unfit


def main(arguments: List[str]) -> int:
    """`head TOKEN --job ID … -- LAUNCHER…`: claim the attempt, submit the run's next job if the plan asks, run."""
    cut = arguments.index("--")
    options, launcher = parse(arguments[:cut]), arguments[cut + 1 :]
    try:
        attempt = Attempt.load(run_directory(), options.task, 0)
        set_umask(attempt)
        attempt = claims.begin(attempt, options.token, options.job)
        if attempt.is_script:  # its directives may leave the number of nodes to the scheduler
            attempt = attempt.resized(nodes=len(expand_hosts(options.hosts)) or 1, ranks=1)
        needed = attempt.agents + OTHER_FILES
        limit = system.allow_open_files(needed)
        if limit is not None:
            from serried.agent import finish

            problem = f"{attempt.agents} nodes need {needed} open files; `ulimit -Hn` allows {limit}"
            finish.refuse(attempt, options, problem)
            return names.EXIT_CODES[names.LAUNCH_FAILED]
    except claims.Refused as refusal:
        print(f"serried: nothing to do: {refusal}", file=sys.stderr)
        return names.EXIT_REFUSED
    except (OSError, ValueError) as error:
        print(f"serried: cannot begin: {error}", file=sys.stderr)
        return 1
    saved, watched = attempt.directory.checkpoints, attempt.plan.watch_patterns
    # Neither is there in most first attempts. The training library reports its own checkpoints.
    if (watched or saved.is_dir()) and not checkpoints.is_of_train(saved):
        for path in checkpoints.torn(saved, watched):
            print(f"serried: skipping checkpoint {path}: it was not written completely", file=sys.stderr)
    successor_jobs.start(attempt, options.token, options.job)
    return Head(attempt, options, launcher).run()


class Head:
    def __init__(self, attempt: Attempt, options: Options, launcher: List[str]) -> None:
        self.attempt = attempt
        self.loop = Loop()
        self._journal = files.Journal(attempt.files.events, attempt.file_mode)
        self._stop_reason: Optional[Reason] = None
        self._are_ranks_notified = self._have_ranks_started = self._has_ended = False
        self._port = rendezvous.hold_port()
        self._nodes = NodeRegistry(self.loop, attempt.agents, expand_hosts(options.hosts), self)
        self._deadline = deadline.deadline_of(attempt, options.end, options.age)
        self._monitor = Monitor(self, self._nodes, self._deadline)
        self._live: LiveFile
        """From `run` on."""
        self._hangs: HangWatch
        self._stage_in = StageInCoordinator(attempt, self._nodes, self.log_event, self._fail_launch, self._start_ranks)
        self._checks = CheckCoordinator(
            self.loop,
            attempt,
            self._nodes,
            port=self._port.getsockname()[1],
            log_event=self.log_event,
            fail=self._fail_check,
            is_over=lambda: self._has_ended or self.is_stopping,
        )
        self._search: Optional[TrialSearch] = None
        if attempt.search:
            from serried.agent.trials.search import TrialSearch

            self._search = TrialSearch(self.loop, attempt, self._prune, self._fail_launch)
        self._pairs: Optional[PairsCoordinator] = None
        if attempt.plan.preflight:
            from serried.agent.checks.pairs import PairsCoordinator

            self._pairs = PairsCoordinator(self.loop, attempt, self._nodes, self.log_event, self._on_pairs_checked)
        self._script: Optional[ScriptProcess] = None
        """The process of the user's job script."""
        self._places = list(range(attempt.nodes))
        """The nodes that have ranks, in the order of these. The others are spare."""
        self._round = 1
        self._publish_until: Optional[float] = None
        """While nodes copy checkpoints from their disks after a round, on the monotonic clock."""
        self._rounds: Optional[Rounds] = None
        """None if no further round is possible."""
        self._next_round: Optional[RoundBegun] = None
        """Begins after a pause."""
        self._rounds_begun: List[Dict[str, Any]] = []
        """Entries of the journal."""
        if attempt.plan.limit.rounds:
            from serried.agent.head.rounds import Rounds

            self._rounds = Rounds(attempt)
        self._launchers = LauncherCoordinator(self.loop, attempt, self._nodes, self._fail_launcher)
        self._argv = launcher
        self._setup_seconds = SETUP_SECONDS if attempt.plan.environment.setup else 0.0
        self._env_file = job_environment.EnvFile(options.environment, attempt)
        role = system.agent_command("node", *self._env_file.arguments(options.node_variable))
        self._resume = attempt.newest_checkpoint
        """Determined once for all nodes: some may not see the newest file yet."""
        self._environment = {
            names.HEAD: self._nodes.addresses(),
            names.KEY: self._nodes.key.hex(),
            names.ATTEMPT: str(attempt.number),
            names.RUN_DIR: str(attempt.run.path),
            names.RUN_ID: attempt.plan.run,
            names.RESUME: self._resume,
            names.TASK: "" if attempt.task is None else str(attempt.task),
        }
        """For node agents, in addition to the inherited variables."""
        self._launcher = AgentLauncher(self.loop, [*launcher, *role], self._environment, self._launcher_exited)
        limit, host = self._deadline.end if self._deadline else None, os.uname().nodename
        self.log_event(JournalEvent.CLAIMED, job=options.job, token=options.token, host=host, limit=limit)

    def run(self) -> int:
        self.loop.on_signal(signal.SIGTERM, lambda: self._on_terminated("TERM"))
        self.loop.on_signal(signal.SIGUSR1, self._on_warned)
        self.loop.on_signal(signal.SIGHUP, self._monitor.check_parent)
        self.loop.on_signal(signal.SIGCHLD, self._reap)
        self.log_event(JournalEvent.LAUNCHING, argv=self._argv)
        if self.attempt.plan.environment.setup:  # agents run `setup` in the tree before they connect
            self._unpack()
        self._env_file.write(self._environment)
        if not self._has_ended:
            self._launcher.start()
        linux.die_with_parent(signal.SIGHUP)
        self.loop.after(CONNECT_SECONDS + self._setup_seconds, self._check_present)
        self.loop.every(CHECK_SECONDS, self._check_launcher)
        self._monitor.begin()
        if self._search:
            self._search.begin()

        # While the launcher starts the agents, which takes about as long:
        from serried.agent.head.hangs import HangWatch
        from serried.agent.head.live_file import LiveFile

        self._hangs = HangWatch(self._nodes, self.loop.awake, self._ask_where_ranks_are, self._on_hang)
        self._live = LiveFile(
            self.attempt, self._nodes, self.loop.awake, self._deadline, self._record_anomaly, checks=[self._hangs]
        )
        self.loop.every(CHECK_SECONDS, self._look_for_hangs)
        self._live.more_warnings = self._more_warnings
        self._live.is_checking = lambda: bool(
            self.attempt.plan.preflight and self._checks.has_begun and not (self._have_ranks_started or self._has_ended)
        )
        self.loop.every(self._live.interval, self._live.write)
        if not self.attempt.plan.environment.setup:
            self._unpack()
        if not self._has_ended or self._launcher.is_running:
            self.loop.run()
        self._launcher.signal(signal.SIGKILL)
        self._env_file.remove()
        self._live.write()
        if self._argv and any(agent.is_lost for agent in self._nodes):
            sweep_nodes(self.loop, self._argv, self.attempt)
        self._release_nodes()
        self.log_event(JournalEvent.ENDED)
        system.retry(self._write_journal, WRITE_SECONDS)
        if self._monitor.is_orphaned or self._monitor.is_superseded:
            from serried.agent.attempts import finalize

            system.retry(lambda: finalize.conclude(self.attempt), WRITE_SECONDS)
        return names.EXIT_REFUSED if self._monitor.is_superseded else 0

    def _release_nodes(self) -> None:
        """Release nodes that have no agent any more. The first node cannot be released."""
        release, own = self.attempt.plan.site.dialect.release, os.uname().nodename
        hosts = [*(agent.host for agent in self._nodes if agent.is_lost), *self._nodes.missing()]
        hosts = [host for host in hosts if host.partition(".")[0] != own.partition(".")[0]]
        if self._argv and release and hosts:
            system.query(("/bin/bash", "-c", release, "release", *hosts))

    def _write_journal(self) -> None:
        try:
            self._journal.write()
        except OSError as error:
            files.give_back(self.attempt.files.reserve, error)
            raise

    def _unpack(self) -> None:
        from serried.agent.head import snapshot

        try:
            snapshot.prepare(self.attempt)
        except OSError as error:
            self._fail_launch(f"cannot unpack the snapshot: {error}")

    def _reap(self) -> None:
        children = system.reap()
        self._launcher.reap(children)
        if self._script:
            for exit_ in self._script.reap(children):
                self.log_event(JournalEvent.LAUNCHES, **facts_of(self._script.all_launches()))
                self._nodes.broadcast(ToNode.SCRIPT_ENDED, exit=exit_.to_json())

    def _on_terminated(self, because: str, **facts: Any) -> None:
        """Stop after the scheduler's TERM: for the limit if that has passed already."""
        is_late = self._deadline is not None and time.time() >= self._deadline.end
        reason = Reason.LIMIT if is_late else Reason.CANCEL
        self.stop(reason, because, self.attempt.urgent_grace_seconds, **facts)

    def _on_warned(self) -> None:
        """Handle the scheduler's warning. Slurm's may come a minute early; a known deadline gives ranks that minute."""
        is_early = self._deadline is not None and 0 < self._deadline.warning - time.time() < EARLY_SECONDS
        if not (self._deadline and (is_early or not self._have_ranks_started)):
            self.ask_to_save(Reason.LIMIT, "USR1")

    # Messages from the nodes.

    def on_joined(self, agent: NodeAgent) -> None:
        self.log_event(JournalEvent.CONNECTED, node=agent.index, host=agent.host)
        if agent.problem:
            self._fail_launch(f"{agent.host}: {agent.problem}")
        elif len(self._nodes) == self.attempt.agents:
            self._checks.begin()
            self._stage_in.begin()

    def _start_ranks(self) -> None:
        if self._has_ended or self._stop_reason:
            return
        if not self._checks.is_ready:
            self._checks.when_ready(self._start_ranks)
            return
        if self._search and not self._search.is_ready:
            self._search.when_ready(self._start_ranks)
            return
        if self._pairs and not self._pairs.has_begun:
            self._pairs.begin(self._place, names.PREFLIGHT_SECONDS - self._checks.seconds)
            return
        self._have_ranks_started = True
        self._nodes.stop_accepting()
        self._env_file.remove()
        places = self._places if self._places != list(range(self.attempt.nodes)) else None
        self.log_event(
            JournalEvent.STARTING_RANKS, resume=self._resume or None, **({"nodes": places} if places else {})
        )
        seconds_left = self._deadline.over - time.time() if self._deadline else None
        agents = {agent.index: agent for agent in self._nodes}
        hosts = fold_hosts([agents[index].host for index in self._places])
        parameters: Dict[str, Any] = {"parameters": self.attempt.parameters} if self._search else {}
        parameters.update(round=self._round, resume=self._resume, nodes=places)
        for spare in agents.keys() - set(self._places):
            agents[spare].is_held = True
        self._nodes.broadcast(ToNode.START_RANKS, hosts=hosts, place=self._place, left=seconds_left, **parameters)
        if self._round > 1:
            return
        self._launchers.begin()
        self._monitor.ranks_began()
        notifications.notify(self.attempt, names.EVENT_START)

    @property
    def _place(self) -> Dict[str, Any]:
        """Variables that are the same for all ranks."""
        return {"port": self._port.getsockname()[1], "deadline": self._deadline.at if self._deadline else 0}

    def _on_pairs_checked(self, findings: List[Finding]) -> None:
        if not self._fail_check(findings):
            self._start_ranks()

    def _fail_check(self, findings: List[Finding]) -> bool:
        """End the launch if a check has found a problem, unless spare nodes take the place of those that it blames."""
        from serried.schema import checks

        for bad in (finding for finding in findings if finding.level == checks.PROBLEM):
            hosts = fold_hosts(bad.hosts)
            where = "" if bad.seen.startswith(hosts) else f"{hosts}: "
            message = f"{where}check `{bad.id}`: {bad.seen}"
            blamed = [agent for agent in self._nodes if agent.host in bad.hosts and not agent.is_unfit]
            if not (bad.hosts and self.can_replace(blamed)):
                self._fail_launch(message, Reason.CHECK_FAILED)
                return True
            for agent in blamed:
                agent.is_unfit = True
            if blamed:
                message += self._use_spares()
                self.log_event(JournalEvent.ANOMALY, code=Reason.CHECK_FAILED, message=message)
        return False

    def on_message(self, agent: NodeAgent, message: Message) -> None:
        if message["event"] == ToHead.SAMPLE:
            self._live.on_sample(agent, message)
        elif message["event"] == ToHead.HEARTBEAT:
            agent.quiet_seconds, agent.running = message["quiet"], message["running"]
            agent.heartbeat_at = self.loop.awake()
            if self._script and agent.index == 0:
                agent.quiet_seconds = self._script.quiet_seconds()
                agent.running = [rank.number for rank in self._script.running]
        elif message["event"] == ToHead.CONTACT:
            self._monitor.on_contact(message["seen"])
        elif message["event"] == ToHead.HANG_REPORTS:
            self._hangs.on_reports(agent, message)
        else:
            self._monitor.check_parent()
            if self._script:
                self._script.launches.on_message(agent.index, agent.host, self.loop.awake(), message)
            self._on_event(agent, message)

    @property
    def is_stopping(self) -> bool:
        return self._stop_reason is not None

    def _on_event(self, agent: NodeAgent, message: Message) -> None:
        event = message["event"]
        if event in LOGGED:
            self.log_event(**{**message, "event": LOGGED[event], "node": agent.index, "host": agent.host})
        if event == ToHead.SCRIPT_PLACE:
            self._start_script(agent, message["place"], message["address"])
        elif event in (ToHead.FAILED, ToHead.LAUNCHED_RANK_FAILED):
            self._judge_failure(Exit.from_json(message["exit"])._replace(host=agent.host))
        elif event == ToHead.ROUND_ENDED:
            self._on_round_ended(agent, known(NodeEnded, message))
        elif event == ToHead.PUBLISHED:
            agent.has_published = True
            self._begin_round_if_ended()
        elif event == ToHead.STOP:
            self._on_terminated(f"TERM on {agent.host}", node=agent.index)
        elif event == ToHead.ORPHANED:
            self.on_node_lost(agent, Reason.STEP_ENDED, "the scheduler's process there ended")
        elif event == ToHead.DONE:
            agent.is_done = True
            self._end_rounds()
            self._finish_if_done()
        elif not (
            self._stage_in.on_message(agent, message)
            or self._checks.on_message(agent, message)
            or (self._pairs and self._pairs.on_message(agent, message))
        ):
            self._launchers.on_message(agent, message)

    def _start_script(self, agent: NodeAgent, variables: Dict[str, Any], address: str) -> None:
        from serried.agent.launchers.script import ScriptProcess

        if self._stop_reason or self._has_ended:
            self._nodes.broadcast(ToNode.SCRIPT_ENDED, exit=None)
            return
        self._script = ScriptProcess(self.attempt, variables, address)
        pid = self._script.leaders[0]
        self.log_event(JournalEvent.STARTED, node=agent.index, host=agent.host, pid=pid)
        self._nodes.send_to(agent.index, {"do": ToNode.SCRIPT_STARTED, "host": os.uname().nodename, "pid": pid})

    def _judge_failure(self, exit_: Exit) -> None:
        """End the other ranks after a failure. A rank that obeyed the stop notice did not fail."""
        has_obeyed = self._are_ranks_notified and exit_.exit_code in names.OBEYED_STATUSES
        if exit_.launch:
            if exit_.needed and not self._stop_reason:
                self.loop.after(self.attempt.grace_seconds, partial(self._end_launch, exit_))
        elif not (exit_.rank == names.SCRIPT_RANK or has_obeyed):  # a script has no others to end
            lost = " lost another rank" if exit_.stumbled else ""
            self.stop(Reason.FAILURE, f"rank {exit_.rank} on {exit_.host}{lost}", self.attempt.grace_seconds)

    def _end_launch(self, exit_: Exit) -> None:
        """End what still runs of a launch of the script. Its launcher then exits, and the script decides."""
        from serried.agent.launchers.script import how_it_failed

        launch = exit_.launch
        if self._script and launch in self._script.launches.running and not self._stop_reason:
            self.log_event(JournalEvent.ENDING_LAUNCH, launch=launch, rank=exit_.rank, host=exit_.host)
            grace, because = self.attempt.grace_seconds, how_it_failed(exit_)
            self._nodes.broadcast(ToNode.END_LAUNCH, launch=launch, grace=grace, because=because)

    def on_node_lost(self, agent: NodeAgent, code: Reason, because: str) -> None:
        self._monitor.check_parent()
        if agent.is_done or self._has_ended:
            self._nodes.disconnect(agent)
            return
        is_spare = self._have_ranks_started and agent.index not in self._places
        event = JournalEvent.SPARE_LOST if is_spare else JournalEvent.NODE_LOST
        self.log_event(event, **facts_of(NodeLost(agent.host, agent.index, code, because)))
        self._nodes.disconnect(agent)  # an agent that loses its connection reads this entry of the journal
        agent.is_done = agent.is_lost = True
        if is_spare:
            system.log(f"spare node {agent.host} was lost: {because}")
            if not self.can_replace([]):  # it was to take the place of another one
                self._end_rounds()
        elif self._have_ranks_started:
            if not self.can_replace([agent]):
                self._end_rounds()
            self.stop(Reason.LOST, f"lost {agent.host}", self.attempt.grace_seconds)
            self._begin_round_if_ended()
        else:
            absent = ", ".join(self._nodes.missing())
            first = f"no agent answered from {absent}, and " if absent else ""
            self._fail_launch(f"{first}lost the agent on {agent.host} before the ranks started")
        self._finish_if_done()

    def on_ranks_ended(self) -> None:
        self.log_event(JournalEvent.ALL_RANKS_ENDED)

    # Hangs.

    @property
    def hung(self) -> str:
        """Which rank hangs, and where; empty if that is unknown."""
        return f"hung: {self._hangs.hang.message}" if self._hangs.hang and self._hangs.hang.ranks else ""

    def name_hang(self, limit_seconds: float) -> None:
        """Find out which rank hangs before `limit.output_timeout` ends the run."""
        if limit_seconds >= 2 * LONG_SECONDS:
            self._hangs.ask_once()

    def _look_for_hangs(self) -> None:
        if self._have_ranks_started and not (self._stop_reason or self._has_ended):
            self._hangs.look()

    def _ask_where_ranks_are(self) -> str:
        request = history.StacksRequest(f"{time.time():.0f}-hang", None)
        self.request_stacks(request, hang=True)
        return request.id

    def _on_hang(self, hang: Hang) -> bool:
        """Start the ranks again if that is possible, else warn."""
        if self._stop_reason or self._has_ended:
            return False
        may_repeat = False
        if self._rounds and self.can_replace([]):
            with contextlib.suppress(OSError):
                may_repeat = self._rounds.may_follow(hang)
        if may_repeat:
            self.stop(Reason.SILENCE, hang.message, self.attempt.grace_seconds, ranks=hang.ranks, hung=self.hung)
        else:
            anomaly = {"code": Reason.STALLED, "message": f"hung: {hang.message}", "ranks": [*hang.ranks]}
            self._live.note(anomaly)
            self._record_anomaly(anomaly)
        return may_repeat

    def request_stacks(self, request: history.StacksRequest, *, hang: bool = False) -> None:
        """Have all nodes write the stacks of their ranks: the script's too, which only the head knows."""
        script = next((rank.pid for rank in self._script.running), 0) if self._script else 0
        nodes = [agent.index for agent in self._nodes if agent.is_connected]
        self.log_event(JournalEvent.STACKS, id=request.id, nodes=nodes)
        self._nodes.broadcast(ToNode.STACKS, id=request.id, ranks=request.ranks, script=script, hang=hang)

    # Stopping.

    def stop(self, reason: Reason, because: str, grace: float, **facts: Any) -> None:
        """End the ranks on every node: TERM, `grace`, KILL."""
        absent = () if self._have_ranks_started else tuple(self._nodes.missing())
        launches = tuple(self._script.launches.running) if self._script else None
        stopping = Stopping(reason, because, absent=absent, launches=launches, **facts)
        self.log_event(JournalEvent.STOPPING, **facts_of(stopping))
        self._stop_reason = self._stop_reason or reason
        if reason not in REPEATED or self._monitor.is_superseded or self._monitor.is_orphaned:
            self._end_rounds()
        is_new = self._nodes.stop_ranks(Reason.FAILURE if self._rounds and reason is Reason.LOST else reason, grace)
        self._launchers.stop()
        if self._script and self._script.running:
            self._script.terminate()
            self.loop.after(grace, self._script.kill)
        if not self._have_ranks_started:
            self._abandon_launch()
        elif is_new:
            self.loop.after(grace + OBEY_SECONDS, partial(self._drop_unstopped, self._round))

    def _drop_unstopped(self, round_: int) -> None:
        if self._round == round_:
            self._nodes.drop_unfinished(Reason.STOP_IGNORED, "it did not stop")

    def _on_round_ended(self, agent: NodeAgent, ended: NodeEnded) -> None:
        if self._rounds is None:
            self._nodes.send_to(agent.index, {"do": ToNode.FINISH})
            return
        agent.is_held = True
        self._rounds.on_ended(agent, ended)
        self._begin_round_if_ended()

    def _have_all_ended(self) -> bool:
        """Whether the ranks of all nodes have ended, so that another round may begin."""
        return self._rounds is not None and all(
            agent.is_held or agent.is_lost for agent in self._nodes if agent.index in self._places
        )

    def _must_await_checkpoints(self) -> bool:
        """Whether nodes still copy complete checkpoints from their disks: the ranks resume from the newest one."""
        ends = [agent for agent in self._nodes if agent.index in self._places and not agent.is_lost]
        awaited = [agent for agent in ends if not agent.has_published]
        if not (awaited and self.attempt.plan.watch_patterns):
            return False
        if self._publish_until is None:
            self._publish_until = time.monotonic() + PUBLISH_SECONDS
            self.loop.after(PUBLISH_SECONDS + 0.1, self._begin_round_if_ended)
            for agent in ends:
                self._nodes.send_to(agent.index, {"do": ToNode.PUBLISH})
        is_late = time.monotonic() > self._publish_until
        if is_late:
            hosts = fold_hosts([agent.host for agent in awaited])
            system.log(f"checkpoints on {hosts} were not copied within {PUBLISH_SECONDS:.0f} s")
        return not is_late

    def can_replace(self, agents: Sequence[NodeAgent]) -> bool:
        """Whether other nodes can take the place of these, or those are spare themselves.

        The first node cannot be replaced: this process runs there, and job.sh.
        """
        bad = {agent.index for agent in agents} | {agent.index for agent in self._nodes if _is_bad(agent)}
        active = bad & set(self._places)
        spares = {agent.index for agent in self._nodes} - bad - set(self._places)
        return self._rounds is not None and 0 not in active and len(active) <= len(spares)

    def _use_spares(self) -> str:
        """Let spare nodes take the place of the lost and unfit ones, and return that as the end of a sentence."""
        said = ""
        agents = {agent.index: agent for agent in self._nodes}
        for place, index in enumerate(self._places):
            if _is_bad(agents[index]):
                spare = next(it for it in self._nodes if it.index not in self._places and not _is_bad(it))
                self._places[place] = spare.index
                said += f"; {spare.host} takes the place of {agents[index].host}"
        return said

    def _begin_round_if_ended(self) -> None:
        """Once the ranks of all nodes have ended: start them again, perhaps after a pause, or end the attempt."""
        if self._next_round or not self._have_all_ended() or self._rounds is None:
            return
        is_warned = self._deadline is not None and time.time() >= self._deadline.warning
        if self._stop_reason in REPEATED and not is_warned:
            if self._must_await_checkpoints():
                return
            lost = [agent.host for agent in self._nodes if agent.index in self._places and agent.is_lost]
            try:
                self._next_round = self._rounds.decide(self._stop_reason, lost, self._hangs.hang)
            except (OSError, ValueError, KeyError) as error:
                system.log(f"no further round: {type(error).__name__}: {error}")
        if self._next_round is None:
            self._end_rounds()
            return
        self.loop.after(self._rounds.pause_seconds, self._begin_round)
        self._leave_out(self._rounds.bad_hosts, self._rounds.unfit)

    def _leave_out(self, bad: Mapping[str, str], unfit: Mapping[str, str]) -> None:
        """Use these nodes no more. Those that failed twice are better than none: they stay if nothing replaces them."""
        from serried.agent.attempts import continuing

        for agent in self._nodes:
            is_dispensable = agent.host in bad and (self.can_replace([agent]) or continuing.can_exclude(self.attempt))
            agent.is_unfit |= agent.host in unfit or is_dispensable
        if not self.can_replace([]):
            self.log_event(JournalEvent.BAD_NODES, hosts=dict(bad))
            self._end_rounds()

    def _begin_round(self) -> None:
        """Unless the run has been stopped since, or more nodes are lost than can be replaced."""
        self._monitor.look_again()
        begun, self._next_round = self._next_round, None
        if self._rounds is None or begun is None:
            return
        begun = begun._replace(message=begun.message + self._use_spares())
        self._stop_reason, self._round, self._publish_until = None, begun.round, None
        with contextlib.suppress(OSError, ValueError):  # a checkpoint may have been copied back during a pause
            begun = begun._replace(resume=self.attempt.newest_checkpoint or None)
        self._resume = begun.resume or ""
        self._port.close()
        self._port = rendezvous.hold_port()
        self._nodes.release()
        self._hangs.begin_round()
        self.log_event(JournalEvent.ROUND, **facts_of(begun))
        self._rounds_begun.append({"event": JournalEvent.ROUND, **facts_of(begun)})
        system.log(f"round {begun.round}: the ranks start again, because {begun.message}")
        again = {**facts_of(begun), "message": f"its ranks start again, because {begun.message}"}
        notifications.notify(self.attempt, names.EVENT_ANOMALY, Reason.RECOVERED, **again)
        self._start_ranks()

    def _end_rounds(self) -> None:
        """No further round follows: nodes that wait for one may finish."""
        if self._rounds:
            self._rounds = None
            self._nodes.release()
            self._nodes.broadcast(ToNode.FINISH)

    def _prune(self, values: int) -> None:
        if self._have_ranks_started and self._stop_reason is None:
            self.stop(Reason.PRUNED, "the search", self.attempt.grace_seconds, values=values)

    def ask_to_save(self, reason: Reason, because: str, **facts: Any) -> None:
        """Send ranks the stop notice, unless an earlier reason takes precedence."""
        if not self._have_ranks_started:  # nothing to save
            self.stop(reason, because, self.attempt.grace_seconds, **facts)
        elif self._stop_reason in REPEATED:  # no rank is left to save
            self._end_rounds()
        elif history.outweighs(reason, self._stop_reason):
            self._stop_reason, self._are_ranks_notified = reason, True
            notice = self.attempt.plan.limit.notify
            if self._script:
                notice = self._script.send_notice(notice)
            stopping = Stopping(reason, because, save=True, notice=notice, **facts)
            self.log_event(JournalEvent.STOPPING, **facts_of(stopping))
            self._nodes.broadcast(ToNode.STOP, reason=reason, hard=False, grace=0)

    def _more_warnings(self, now: float) -> Sequence[Anomaly]:
        launched = self._script.launches.warnings(now) if self._script else []
        rounds = len(self._rounds_begun)
        return [*launched, *({**each.to_json(), "rounds": rounds} for each in recovered_in(self._rounds_begun))]

    def _record_anomaly(self, anomaly: Anomaly) -> None:
        if self._stop_reason is None and not self._has_ended:  # ranks that save or end take no steps
            self.log_event(JournalEvent.ANOMALY, **anomaly)
            notifications.notify(self.attempt, names.EVENT_ANOMALY, anomaly["code"], **anomaly)

    # The launcher, and the end.

    def _check_launcher(self) -> None:
        if not len(self._nodes) and self._argv and not self._has_ended:
            self._launcher.end_if_stuck(self._setup_seconds)

    def _launcher_exited(self, status: int) -> None:
        self._monitor.check_parent()
        self.log_event(JournalEvent.AGENT_LAUNCHER_EXITED, status=status, said=self._launcher.last_lines)
        if self._has_ended:
            self._finish_if_done()
        elif self._have_ranks_started:
            drop = partial(self._nodes.drop_unfinished, Reason.LAUNCHER_ENDED, "the launcher ended")
            self.loop.after(LEAVE_SECONDS, drop)
        elif self._stop_reason or len(self._nodes) or not self._argv or not self._launcher.try_again():
            self._fail_launch(" / ".join(self._launcher.last_lines) or f"the launcher exited with status {status}")

    def _check_present(self) -> None:
        missing = ", ".join(self._nodes.missing())
        if missing and not self._have_ranks_started and not self._has_ended:
            self._fail_launch(f"no agent answered from {missing} within {CONNECT_SECONDS + self._setup_seconds:.0f} s")

    def _fail_launcher(self, failure: Failure) -> None:
        """End the attempt after a failure of the ranks' launcher, without a failed rank."""
        event = JournalEvent.LAUNCHER_FAILED if self._launchers.started else JournalEvent.LAUNCH_FAILED
        self.log_event(event, **failure._asdict())
        self.stop(Reason.LAUNCHER, failure.message, self.attempt.grace_seconds)

    def _fail_launch(self, message: str, code: Reason = Reason.LAUNCH) -> None:
        if not self._stop_reason:
            self.log_event(JournalEvent.LAUNCH_FAILED, code=code, message=message)
        self._abandon_launch()

    def _abandon_launch(self) -> None:
        if self._pairs:
            self._pairs.stop()
        for agent in self._nodes:
            agent.is_done = True
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        """Once every node is done, let the agents exit, and the launcher after them."""
        if not self._nodes.are_done():
            return
        self._launchers.judge()
        if not self._has_ended:
            self._has_ended = True
            self._nodes.stop_accepting()
            self._nodes.broadcast(ToNode.BYE)
            # The launcher exits after a killed agent, and hangs after a lost node or if agents are missing. There is
            # time for it to exit by itself, except if its report on a lost node is not needed.
            hangs = any(agent.is_lost for agent in self._nodes) or self._nodes.missing()
            seconds = FAREWELL_SECONDS if hangs and self._stop_reason != Reason.LOST else LEAVE_SECONDS
            self.loop.after(seconds if len(self._nodes) else 0, self._end_launcher)
        if not self._launcher.is_running:
            self.loop.stop()

    def _end_launcher(self) -> None:
        self.log_event(JournalEvent.ENDING_AGENT_LAUNCHER)
        self._launcher.signal(signal.SIGTERM)
        self.loop.after(FAREWELL_SECONDS, self.loop.stop)

    def log_event(self, event: str, **facts: Any) -> None:
        try:
            self._journal.append({"t": round(time.time(), 3), "event": event, **facts})
        except OSError as error:
            system.log(f"cannot write the journal: {error}")
