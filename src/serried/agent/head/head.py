"""The head agent: starts an agent on each node, reads their messages, and decides when ranks stop.

Only the head receives requests from job.sh and control.jsonl. Its journal alone tells how the attempt ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from serried.agent import notifications, system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.attempts import claims, deadline, history, successor_jobs
from serried.agent.comms import job_environment, rendezvous
from serried.agent.comms.node_registry import NodeAgent, NodeRegistry
from serried.agent.head import monitor
from serried.agent.head.agent_launcher import AgentLauncher, agent_environment, sweep_nodes
from serried.agent.launchers.head_side import Failure, LauncherCoordinator
from serried.agent.loop import Loop
from serried.agent.options import Options, parse
from serried.agent.stage_in.head_side import StageInCoordinator
from serried.fs import files
from serried.process import linux
from serried.protocol import checkpoints, hostlist, names
from serried.protocol.events import JournalEvent, ToHead, ToNode
from serried.protocol.json_lines import Message
from serried.protocol.reasons import Reason

if TYPE_CHECKING:
    from serried.agent.head.anomalies import Anomaly
    from serried.agent.head.live_file import LiveFile
    from serried.agent.launchers.script import ScriptProcess
    from serried.agent.trials.head_side import TrialSearch

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
OBEY_SECONDS = 8.0
"""How long after the grace a node may take to report that its ranks have ended."""
LOGGED = {
    ToHead.SIDE_COMMAND_FAILED: JournalEvent.SIDE_COMMAND_FAILED,
    ToHead.LAUNCHED_RANK_FAILED: JournalEvent.LAUNCHED_RANK_FAILED,
    ToHead.LAUNCHED_RANK_RESTARTED: JournalEvent.LAUNCHED_RANK_RESTARTED,
    ToHead.GPUS_IN_USE: JournalEvent.GPUS_IN_USE,
}
"""Messages that are entries of the journal, and nothing else."""
OTHER_FILES = 32
"""In addition to a connection for each node, with room to spare."""


def main(arguments: List[str]) -> int:
    """`head TOKEN --job ID … -- LAUNCHER…`: claim the attempt, submit the run's next job if the plan asks, run."""
    cut = arguments.index("--")
    options, launcher = parse(arguments[:cut]), arguments[cut + 1 :]
    try:
        work = Attempt.load(run_directory(), options.task, 0)
        set_umask(work)
        work = claims.begin(work, options.token, options.job)
        if work.is_script:  # its directives may leave the number of nodes to the scheduler
            work = work.resized(nodes=len(hostlist.expand(options.hosts)) or 1, ranks=1)
        needed = work.nodes + OTHER_FILES
        limit = system.allow_open_files(needed)
        if limit is not None:
            from serried.agent import finish

            problem = f"{work.nodes} nodes need {needed} open files; `ulimit -Hn` allows {limit}"
            finish.refuse(work, options, problem)
            return names.EXIT_CODES[names.LAUNCH_FAILED]
    except claims.Refused as refusal:
        print(f"serried: nothing to do: {refusal}", file=sys.stderr)
        return names.EXIT_REFUSED
    except (OSError, ValueError) as error:
        print(f"serried: cannot begin: {error}", file=sys.stderr)
        return 1
    _report_incomplete_checkpoints(work)
    successor_jobs.start(work, options.token, options.job)
    return Head(work, options, launcher).run()


def _report_incomplete_checkpoints(work: Attempt) -> None:
    """Report other programs' checkpoints; the training library reports its own."""
    if not (work.plan.watch_patterns or work.directory.checkpoints.is_dir()):  # as in most first attempts
        return
    if not checkpoints.is_of_train(work.directory.checkpoints):
        for path in checkpoints.torn(work.directory.checkpoints, work.plan.watch_patterns):
            print(f"serried: skipping checkpoint {path}: it was not written completely", file=sys.stderr)


class Head:
    def __init__(self, work: Attempt, options: Options, launcher: List[str]) -> None:
        self.work = work
        self.loop = Loop()
        self._attempt = work.directory.attempt(work.number)
        self._journal = files.Journal(self._attempt.events, work.file_mode)
        self._stop_reason: Optional[Reason] = None
        self._are_ranks_notified = self._have_ranks_started = self._has_ended = False
        self._port = rendezvous.hold_port()
        self._nodes = NodeRegistry(self.loop, work.nodes, hostlist.expand(options.hosts), self)
        self._deadline = deadline.deadline_of(work, options.end, options.age)
        self._monitor = monitor.Monitor(self, self._nodes, self._deadline)
        self._live: LiveFile
        """From `run` on."""
        self._stage_in = StageInCoordinator(work, self._nodes, self.log_event, self._fail_launch, self._start_ranks)
        self._search: Optional[TrialSearch] = None
        if work.search:
            from serried.agent.trials.head_side import TrialSearch

            self._search = TrialSearch(self.loop, work, self._prune, self._fail_launch)
        self._script: Optional[ScriptProcess] = None
        """The process of the user's job script."""
        self._launchers = LauncherCoordinator(self.loop, work, self._nodes, self._fail_launcher)
        self._argv = launcher
        self._env_file = job_environment.EnvFile(options.environment, work)
        role = system.agent_command("node", *self._env_file.arguments(options.node_variable))
        self._environment = agent_environment(work, self._nodes.addresses(), self._nodes.key)
        self._launcher = AgentLauncher(self.loop, [*launcher, *role], self._environment, self._launcher_exited)
        limit = self._deadline.end if self._deadline else None
        self.log_event(
            JournalEvent.CLAIMED, job=options.job, token=options.token, host=os.uname().nodename, limit=limit
        )

    def run(self) -> int:
        self.loop.on_signal(signal.SIGTERM, lambda: self._on_terminated(Reason.CANCEL, "TERM"))
        self.loop.on_signal(signal.SIGUSR1, self._on_warned)
        self.loop.on_signal(signal.SIGHUP, self._monitor.check_parent)
        self.loop.on_signal(signal.SIGCHLD, self._reap)
        self.log_event(JournalEvent.LAUNCHING, argv=self._argv)
        if self.work.plan.environment.setup:  # agents run `setup` in the tree before they connect
            self._unpack()
        self._env_file.write(self._environment)
        if not self._has_ended:
            self._launcher.start()
        linux.die_with_parent(signal.SIGHUP)
        self._setup_seconds = SETUP_SECONDS if self.work.plan.environment.setup else 0.0
        self.loop.after(CONNECT_SECONDS + self._setup_seconds, self._check_present)
        self.loop.every(monitor.CHECK_SECONDS, self._check_launcher)
        self._monitor.begin()
        if self._search:
            self._search.begin()
        # While the launcher starts the agents, which takes about as long:
        self._begin_live_file()
        if not self.work.plan.environment.setup:
            self._unpack()
        import hmac  # noqa: F401 - to check who connects; loads OpenSSL

        if not self._has_ended or self._launcher.is_running:
            self.loop.run()
        self._launcher.signal(signal.SIGKILL)
        self._env_file.remove()
        self._live.write()
        if self._argv and any(agent.is_lost for agent in self._nodes):
            sweep_nodes(self.loop, self._argv, self.work)
        self.log_event(JournalEvent.ENDED)
        system.retry(self._write_journal, WRITE_SECONDS)
        if self._monitor.is_orphaned or self._monitor.is_superseded:
            from serried.agent.attempts import finalize

            system.retry(lambda: finalize.conclude(self.work), WRITE_SECONDS)
        return names.EXIT_REFUSED if self._monitor.is_superseded else 0

    def _write_journal(self) -> None:
        try:
            self._journal.write()
        except OSError as error:
            files.give_back(self._attempt.reserve, error)
            raise

    def _begin_live_file(self) -> None:
        from serried.agent.head.live_file import LiveFile

        self._live = LiveFile(self.work, self._nodes, self.loop.awake, self._deadline, self._record_anomaly)
        self._live.more_warnings = self._warn_of_launches
        self.loop.every(self._live.interval, self._live.write)

    def _unpack(self) -> None:
        from serried.agent.head import snapshot

        try:
            snapshot.prepare(self.work)
        except OSError as error:
            self._fail_launch(f"cannot unpack the snapshot: {error}")

    def _on_terminated(self, reason: Reason, because: str, **facts: Any) -> None:
        """Stop after the scheduler's TERM: for the limit if that has passed already."""
        is_late = self._deadline is not None and time.time() >= self._deadline.end
        self.stop(Reason.LIMIT if is_late else reason, because, self.work.urgent_grace_seconds, **facts)

    def _on_warned(self) -> None:
        """Handle the scheduler's warning. Slurm's may come a minute early; a known deadline gives ranks that minute."""
        if self._deadline and (
            not self._have_ranks_started or 0 < self._deadline.warning - time.time() < EARLY_SECONDS
        ):
            return
        self.ask_to_save(Reason.LIMIT, "USR1")

    # Messages from the nodes.

    def on_joined(self, agent: NodeAgent) -> None:
        self.log_event(JournalEvent.CONNECTED, node=agent.index, host=agent.host)
        if agent.problem:
            self._fail_launch(f"{agent.host}: {agent.problem}")
        elif len(self._nodes) == self.work.nodes:
            self._stage_in.begin()

    def _start_ranks(self) -> None:
        if self._has_ended or self._stop_reason:
            return
        if self._search and not self._search.is_ready:
            self._search.when_ready(self._start_ranks)
            return
        self._have_ranks_started = True
        self._nodes.stop_accepting()
        self._env_file.remove()
        self.log_event(JournalEvent.STARTING_RANKS, resume=self._environment[names.RESUME] or None)
        variables = {"port": self._port.getsockname()[1], "deadline": self._deadline.at if self._deadline else 0}
        seconds_left = self._deadline.over - time.time() if self._deadline else None
        hosts = hostlist.fold([agent.host for agent in self._nodes])
        parameters = {"parameters": self.work.parameters} if self._search else {}
        self._nodes.broadcast(ToNode.START_RANKS, hosts=hosts, place=variables, left=seconds_left, **parameters)
        self._launchers.begin()
        self._monitor.ranks_began()
        notifications.notify(self.work, names.EVENT_START)

    def on_message(self, agent: NodeAgent, message: Message) -> None:
        if message["event"] == ToHead.SAMPLE:
            self._live.on_sample(agent, message)
            return
        if message["event"] != ToHead.HEARTBEAT:
            self._monitor.check_parent()
            if self._script:
                self._on_event_of_launch(agent, message)
            self._on_event(agent, message)
            return
        agent.quiet_seconds, agent.running = message["quiet"], message["running"]
        if self._script and agent.index == 0:
            agent.quiet_seconds, agent.running = self._script.quiet_seconds(), self._script.running_numbers

    @property
    def is_stopping(self) -> bool:
        return self._stop_reason is not None

    def _on_event(self, agent: NodeAgent, message: Message) -> None:
        facts = {name: value for name, value in message.items() if name != "event"}
        event = message["event"]
        if event == ToHead.STARTED:
            self.log_event(JournalEvent.STARTED, node=agent.index, host=agent.host)
        elif event == ToHead.SCRIPT_PLACE:
            self._start_script(agent, message["place"], message["address"])
        elif event in LOGGED:
            self.log_event(LOGGED[event], node=agent.index, host=agent.host, **facts)
        elif event == ToHead.FAILED:
            self.log_event(JournalEvent.RANK_FAILED, node=agent.index, host=agent.host, **facts)
            self._judge_failure(agent, message["exit"])
        elif event == ToHead.STOP:
            self._on_terminated(Reason(message["reason"]), f"TERM on {agent.host}", node=agent.index)
        elif event == ToHead.ORPHANED:
            self.on_node_lost(agent, Reason.STEP_ENDED, "the scheduler's process there ended")
        elif event == ToHead.DONE:
            agent.is_done = True
            self.log_event(JournalEvent.NODE_ENDED, node=agent.index, host=agent.host, **facts)
            self._finish_if_done()
        elif not (self._monitor.on_message(message) or self._stage_in.on_message(agent, message)):
            if event == ToHead.LAUNCHER_EXITED:
                self.log_event(event, node=agent.index, host=agent.host, **facts)
            self._launchers.on_message(agent, message)

    def _start_script(self, agent: NodeAgent, place: Dict[str, Any], address: str) -> None:
        from serried.agent.launchers.script import ScriptProcess

        if self._stop_reason or self._has_ended:
            self._nodes.broadcast(ToNode.SCRIPT_ENDED, exit=None)
            return
        self._script = ScriptProcess(self.work, place, address)
        pid = self._script.leaders[0]
        self.log_event(JournalEvent.STARTED, node=agent.index, host=agent.host, pid=pid)
        self._nodes.send_to(agent.index, {"do": ToNode.SCRIPT_STARTED, "host": os.uname().nodename, "pid": pid})

    def _reap(self) -> None:
        children = system.reap()
        self._launcher.reap(children)
        if self._script is None:
            return
        for exit_ in self._script.reap(children):
            self.log_event(JournalEvent.LAUNCHES, **self._script.launch_facts())
            self._nodes.broadcast(ToNode.SCRIPT_ENDED, exit=exit_)

    def _judge_failure(self, agent: NodeAgent, exit_: Dict[str, Any]) -> None:
        """End the other ranks after a failure. A rank that obeyed the stop notice did not fail."""
        is_script = exit_["rank"] == names.SCRIPT_RANK  # there are no others to end
        if is_script or (self._are_ranks_notified and exit_["exit_code"] in names.OBEYED_STATUSES):
            return
        lost = " lost another rank" if exit_.get("stumbled") else ""
        self.stop(Reason.FAILURE, f"rank {exit_['rank']} on {agent.host}{lost}", self.work.grace_seconds)

    def _on_event_of_launch(self, agent: NodeAgent, message: Message) -> None:
        if self._script:
            self._script.launches.on_message(agent.index, agent.host, self.loop.awake(), message)
        is_failure = message["event"] == ToHead.LAUNCHED_RANK_FAILED and not self._stop_reason
        if is_failure and message["exit"]["needed"]:
            self.loop.after(self.work.grace_seconds, partial(self._end_launch, agent.host, message["exit"]))

    def _end_launch(self, host: str, exit_: Dict[str, Any]) -> None:
        """End what still runs of a launch of the script. Its launcher then exits, and the script decides."""
        from serried.agent.launchers.script import how_it_failed

        launch, rank = exit_["launch"], exit_["rank"]
        if self._script and launch in self._script.launches.running and not self._stop_reason:
            self.log_event(JournalEvent.ENDING_LAUNCH, launch=launch, rank=rank, host=host)
            grace, because = self.work.grace_seconds, how_it_failed(exit_, host)
            self._nodes.broadcast(ToNode.END_LAUNCH, launch=launch, grace=grace, because=because)

    def on_node_lost(self, agent: NodeAgent, code: Reason, because: str) -> None:
        self._monitor.check_parent()
        self._nodes.disconnect(agent)
        if agent.is_done or self._has_ended:
            return
        agent.is_done = agent.is_lost = True
        self.log_event(JournalEvent.NODE_LOST, node=agent.index, host=agent.host, code=code, because=because)
        if self._have_ranks_started:
            self.stop(Reason.LOST, f"lost {agent.host}", self.work.grace_seconds)
        else:
            absent = ", ".join(self._nodes.missing())
            first = f"no agent answered from {absent}, and " if absent else ""
            self._fail_launch(f"{first}lost the agent on {agent.host} before the ranks started")
        self._finish_if_done()

    def on_ranks_ended(self) -> None:
        self.log_event(JournalEvent.ALL_RANKS_ENDED)

    def request_stacks(self, request: history.StacksRequest) -> None:
        """Have all nodes write the stacks of their ranks: the script's too, which only the head knows."""
        script = next((rank.pid for rank in self._script.running), 0) if self._script else 0
        nodes = [agent.index for agent in self._nodes if agent.is_connected]
        self.log_event(JournalEvent.STACKS, id=request.id, nodes=nodes)
        self._nodes.broadcast(ToNode.STACKS, id=request.id, ranks=request.ranks, script=script)

    # Stopping.

    def stop(self, reason: Reason, because: str, grace: float, **facts: Any) -> None:
        """End the ranks on every node: TERM, `grace`, KILL."""
        absent = {} if self._have_ranks_started else {"absent": self._nodes.missing()}
        running = {"launches": self._script.launches.running} if self._script else {}
        self.log_event(JournalEvent.STOPPING, reason=reason, because=because, **absent, **running, **facts)
        self._stop_reason = self._stop_reason or reason
        is_new = self._nodes.stop_ranks(reason, grace)
        self._launchers.stop()
        if self._script and self._script.running:
            self._script.terminate()
            self.loop.after(grace, self._script.kill)
        if not self._have_ranks_started:
            self._abandon_launch()
        elif is_new:
            drop = partial(self._nodes.drop_unfinished, Reason.STOP_IGNORED, "it did not stop")
            self.loop.after(grace + OBEY_SECONDS, drop)

    def _prune(self, values: int) -> None:
        if self._have_ranks_started and self._stop_reason is None:
            self.stop(Reason.PRUNED, "the search", self.work.grace_seconds, values=values)

    def ask_to_save(self, reason: Reason, because: str, **facts: Any) -> None:
        """Send ranks the stop notice, unless an earlier reason takes precedence."""
        if not self._have_ranks_started:  # nothing to save
            self.stop(reason, because, self.work.grace_seconds, **facts)
        elif history.outweighs(reason, self._stop_reason):
            self._stop_reason, self._are_ranks_notified = reason, True
            notice = self.work.plan.limit.notify
            if self._script:
                notice = self._script.send_notice(notice)
            self.log_event(JournalEvent.STOPPING, reason=reason, because=because, save=True, notice=notice, **facts)
            self._nodes.broadcast(ToNode.STOP, reason=reason, hard=False, grace=0)

    def _record_anomaly(self, anomaly: Anomaly) -> None:
        if self._stop_reason is None and not self._has_ended:  # ranks that save or end take no steps
            self.log_event(JournalEvent.ANOMALY, **anomaly)
            notifications.notify(self.work, names.EVENT_ANOMALY, anomaly["code"], **anomaly)

    def _warn_of_launches(self, now: float) -> List[Anomaly]:
        return self._script.launches.warnings(now) if self._script else []

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
        self.stop(Reason.LAUNCHER, failure.message, self.work.grace_seconds)

    def _fail_launch(self, message: str, code: Reason = Reason.LAUNCH) -> None:
        if not self._stop_reason:
            self.log_event(JournalEvent.LAUNCH_FAILED, code=code, message=message)
        self._abandon_launch()

    def _abandon_launch(self) -> None:
        self._nodes.set_all_done()
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
            self.loop.after(self._launcher_timeout() if len(self._nodes) else 0, self._end_launcher)
        if not self._launcher.is_running:
            self.loop.stop()

    def _launcher_timeout(self) -> float:
        """How long the launcher may take to exit: it exits after a killed agent, and hangs after a lost node.

        The time is short if agents are missing and the launcher's report on a lost node is not needed.
        """
        is_alone = any(agent.is_lost for agent in self._nodes) or self._nodes.missing()
        return FAREWELL_SECONDS if is_alone and self._stop_reason != Reason.LOST else LEAVE_SECONDS

    def _end_launcher(self) -> None:
        self.log_event(JournalEvent.ENDING_AGENT_LAUNCHER)
        self._launcher.signal(signal.SIGTERM)
        self.loop.after(FAREWELL_SECONDS, self.loop.stop)

    def log_event(self, event: str, **facts: Any) -> None:
        try:
            self._journal.append({"t": round(time.time(), 3), "event": event, **facts})
        except OSError as error:
            system.log(f"cannot write the journal: {error}")
