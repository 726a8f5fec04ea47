"""The processes that copy files from a node's disk to the run directory.

The role `stage-out` runs beside a node's agent and copies files while ranks run, and the rest at the end. The role
`fetch` runs in a job of its own and copies the files that an earlier attempt left on its node. `SyncLoop` copies in
rounds: checkpoints first and the newest first, then results, small and new ones first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from serried.agent import helper_process
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.node_disk.folder import JOBS, SCRATCH, discard, remove_empty_room
from serried.agent.stage_out import completeness, publish
from serried.agent.stage_out.completeness import Artifact, is_append_only_text
from serried.agent.stage_out.publish import ChangedError, OutOfTimeError, Publisher
from serried.base import NamedTuple, copy, files, locks
from serried.base.tree import Crew
from serried.schema import checkpoints, names
from serried.schema.endings import UNWATCHED, of_last_round, outputs_left_out
from serried.schema.events import FromStageOut, JournalEvent, ToHelper
from serried.schema.exits import Exit
from serried.schema.layout import CHECKPOINTS, RESULTS
from serried.schema.plan import Data, Sync

WORKERS = 16
"""The most results that are copied at once."""
MOST_NAMES = 20
"""How many of the missing files are named."""
LIBRARY_FILES = (names.CONFIG_FILE, names.SMOKE_FILE)
"""Results that the training library writes; they are copied whatever the patterns are."""
EXTRA_CANDIDATES = 3
"""How many checkpoints are considered beyond those to keep: the newest may never become complete."""
OUT_OF_TIME = "no time was left"
RETRY_SECONDS = 5.0
"""How long failed copies are retried at the end: a full disk may have space again."""
PAUSE_SECONDS = 1.0
UNWATCHED_NS = 60 * 10**9
"""Age of a file that matches no pattern before it is reported: the program may still rename it."""

COPIED, VANISHED = None, ""
"""Outcomes of a copy; any other is the reason of a failure."""

Missing = Dict[Tuple[str, str], Tuple[Artifact, str]]


class WatchRoot(NamedTuple):
    """A folder of this node where a program writes checkpoints."""

    root: str
    below: str
    """The pattern from the root on."""
    pattern: str
    """The pattern as the user wrote it."""
    is_shared: bool = False
    """Other nodes write there too."""
    since: int = 0
    """Files that are not newer existed before the run; nanoseconds since the epoch."""


def watch_roots(attempt: Attempt, node: int, local: Optional[Path], scratch: Path) -> List[WatchRoot]:
    """The folders on this node's disk. The first node also watches the working directory, which all nodes share."""
    roots = []
    began_ns = checkpoints.changed(attempt.directory.attempt(1).claim)
    for pattern in attempt.plan.watch_patterns:
        prefix = next((prefix for prefix in checkpoints.IN_SCRATCH if pattern.startswith(prefix)), "")
        if pattern.startswith(checkpoints.IN_CHECKPOINTS):
            if local:  # without a disk, ranks write to the run directory
                below = pattern[len(checkpoints.IN_CHECKPOINTS) :]
                roots.append(WatchRoot(str(local / CHECKPOINTS), below, pattern))
        elif prefix:
            roots.append(WatchRoot(str(scratch), pattern[len(prefix) :], pattern))
        elif node == 0:
            roots.append(WatchRoot(str(attempt.workdir), pattern, pattern, attempt.nodes > 1, began_ns))
    return roots


class SyncLoop:
    def __init__(
        self, publisher: Publisher, roots: Sequence[WatchRoot], results: str, report: Callable[[str], None]
    ) -> None:
        plan = publisher.attempt.plan
        self._roots = roots
        sync = plan.checkpoint or Sync(keep=1)
        self._keep, self._keep_local = sync.keep, sync.keep_local
        self._results = results
        patterns = plan.result_patterns
        self._patterns: List[str] = [*patterns, *LIBRARY_FILES] if results and patterns else []
        self._throttle = publisher.throttle
        self._report = report
        self._publisher = publisher
        self._tracker = completeness.ChangeTracker()
        self._lock = threading.Lock()
        self._problem = ""
        self._unreadable: Missing = {}
        """Folders that cannot be read."""
        self._has_warned_of_unwatched = self._has_checked_patterns = False
        self.files = 0
        self.bytes = 0

    def poll(self) -> None:
        """Note the checkpoints that exist: one that changes until the next poll is not complete."""
        self._tracker.update([artifact for root in self._roots for artifact in self._checkpoints(root)])
        if not self._has_warned_of_unwatched:
            before_ns = time.time_ns() - UNWATCHED_NS
            unwatched = [artifact.path for artifact in self._unwatched() if artifact.mtime_ns < before_ns]
            self._has_warned_of_unwatched = bool(unwatched)
            for sentence in outputs_left_out({"unwatched": unwatched}):
                self._report(sentence)

    def sync_checkpoints(self, *, urgent: bool = False) -> List[str]:
        """Copy the complete checkpoints, the newest first. Returns the names of the copies."""
        candidates = {root: self._stable_candidates(root, urgent=urgent) for root in self._roots}
        complete = self._tracker.settled(self._unpublished(candidates), urgent=urgent)
        wanted = [*self._select(candidates, complete), *self._logs()]
        copied = [artifact.name for artifact in wanted if self._copy(CHECKPOINTS, artifact) is COPIED]
        if copied:
            self._prune()
            self._prune_local()
        return copied

    def sync_results(self) -> List[str]:
        """Copy the results that no program has open, and append-only text. Checkpoints may interrupt.

        Raises the exceptions of `Throttle.advance`.
        """
        urgent_before = self._throttle.urgent_requests
        before = time.time_ns() - completeness.TICK_NS
        artifacts = [artifact for artifact in self._unpublished_results() if artifact.mtime_ns < before]
        if not artifacts:
            self._warn_if_unmatched()
        writing = completeness.open_for_writing() if artifacts else set()
        ready = [one for one in artifacts if not completeness.is_open(one, writing) or is_append_only_text(one)]
        return [artifact.name for artifact, problem in self._copy_results(ready, urgent_before) if problem is COPIED]

    def finish(self, *, trusted: bool, all_trusted: bool) -> Dict[str, Any]:
        """Copy everything that is left, and retry while there is time. Returns a summary of what is missing.

        `trusted` says that all writers on this node have exited by themselves, `all_trusted` those on all nodes.
        """
        until = time.monotonic() + RETRY_SECONDS
        while True:
            self._unreadable = {}
            missing, torn = self.finish_checkpoints(trusted=trusted, all_trusted=all_trusted)
            unwatched = self._unwatched()
            rest = [artifact for artifact in unwatched if not self._publisher.is_published(RESULTS, artifact)]
            for artifact, problem in self._copy_results([*self._unpublished_results(), *rest]):
                if problem:
                    missing[RESULTS, artifact.name] = (artifact, problem)
            missing.update(self._unreadable)
            if not missing or time.monotonic() + PAUSE_SECONDS > min(until, self._throttle.ends_at or until):
                break
            time.sleep(PAUSE_SECONDS)
        self._publisher.close()
        facts: Dict[str, Any] = {"missing": _summary(missing), "torn": torn[:MOST_NAMES]}
        if unmatched := self._find_unmatched(self._patterns)[1]:
            facts["unnamed"] = {"files": len(unmatched), "names": unmatched[:MOST_NAMES]}
        if unwatched:
            facts["unwatched"] = [artifact.path for artifact in unwatched]
        return facts

    def finish_checkpoints(self, *, trusted: bool, all_trusted: bool) -> Tuple[Missing, List[str]]:
        """Copy the complete checkpoints that ranks have left. Returns failed copies, and the names of torn ones."""
        candidates = {root: self._newest(root) for root in self._roots}
        unpublished = self._unpublished(candidates)
        complete = self._tracker.complete_at_end(unpublished, trusted=trusted, all_trusted=all_trusted)
        torn = [artifact for artifact in unpublished if artifact not in complete]
        self._tracker.doubt(torn)
        missing: Missing = {}
        for artifact in [*self._select(candidates, complete), *self._logs()]:
            problem = self._copy(CHECKPOINTS, artifact)
            if problem:
                missing[CHECKPOINTS, artifact.name] = (artifact, problem)
        self._prune()
        return missing, [artifact.name for artifact in torn]

    def doubt(self, *, trusted: bool) -> None:
        """A rank failed; `trusted` as in `StageOut.doubt`."""
        artifacts = [artifact for root in self._roots for artifact in self._checkpoints(root)]
        complete = self._tracker.complete_at_end(artifacts, trusted=trusted, all_trusted=False)
        self._tracker.doubt([artifact for artifact in artifacts if artifact not in complete])

    def _checkpoints(self, root: WatchRoot) -> List[Artifact]:
        """The newest first."""
        artifacts = [artifact for artifact in self._find(root) if not _is_log(artifact)]
        return [artifact._replace(pattern=root.pattern, is_shared=root.is_shared) for artifact in artifacts]

    def _newest(self, root: WatchRoot) -> List[Artifact]:
        return self._checkpoints(root)[: self._keep + EXTRA_CANDIDATES]

    def _stable_candidates(self, root: WatchRoot, *, urgent: bool) -> List[Artifact]:
        """The newest checkpoints; older ones too while all the newest may still be growing."""
        artifacts = self._checkpoints(root)
        newest, older = artifacts[: self._keep + EXTRA_CANDIDATES], artifacts[self._keep + EXTRA_CANDIDATES :]
        if any(self._is_published(artifact) or self._tracker.is_quiet(artifact, urgent=urgent) for artifact in newest):
            return newest
        quiet = (artifact for artifact in older if self._tracker.is_quiet(artifact, urgent=urgent))
        return [*newest, *itertools.islice(quiet, self._keep)]

    def _unwatched(self) -> List[Artifact]:
        """The newest files in `{checkpoints}` if no pattern matches any: a misspelt pattern must not lose them all.

        They are copied to the results, because they may not be checkpoints from which the next attempt can resume.
        """
        own = [root for root in self._roots if root.pattern.startswith(checkpoints.IN_CHECKPOINTS)]
        if not own or self._publisher.has_checkpoints or any(map(self._newest, own)):
            return []
        newest = self._newest(own[0]._replace(below="*"))[: self._keep]
        return [artifact._replace(name=f"{UNWATCHED}/{artifact.name}") for artifact in newest]

    def _logs(self) -> List[Artifact]:
        """Logs of the training that grow beside its checkpoints. All of them are copied and kept."""
        artifacts = [artifact for root in self._roots for artifact in self._find(root) if _is_log(artifact)]
        return [artifact for artifact in artifacts if not self._is_published(artifact)]

    def _find(self, root: WatchRoot) -> List[Artifact]:
        artifacts = completeness.find_checkpoints(root.root, root.below, self._on_unreadable)
        own = [artifact for artifact in artifacts if artifact.mtime_ns > root.since]
        return sorted(own, key=lambda artifact: artifact.mtime_ns, reverse=True)

    def _is_published(self, artifact: Artifact) -> bool:
        return self._publisher.is_published(CHECKPOINTS, artifact)

    def _unpublished(self, candidates: Dict[WatchRoot, List[Artifact]]) -> List[Artifact]:
        every = itertools.chain.from_iterable(candidates.values())
        return [artifact for artifact in every if not self._is_published(artifact)]

    def _select(self, candidates: Dict[WatchRoot, List[Artifact]], complete: Sequence[Artifact]) -> List[Artifact]:
        """For each pattern, those of the newest to keep that are not published: older ones would be pruned at once."""
        selected: Dict[str, Artifact] = {}
        for artifacts in candidates.values():
            usable = [artifact for artifact in artifacts if artifact in complete or self._is_published(artifact)]
            for artifact in usable[: self._keep]:
                if not self._is_published(artifact):
                    selected.setdefault(artifact.source, artifact)  # two patterns may match one file
        return sorted(selected.values(), key=lambda artifact: artifact.mtime_ns, reverse=True)

    def _unpublished_results(self) -> List[Artifact]:
        artifacts = completeness.find_results(self._results, self._patterns, self._on_unreadable)
        artifacts.sort(key=lambda artifact: (artifact.size.bit_length() // 4, -artifact.mtime_ns))
        return [artifact for artifact in artifacts if not self._publisher.is_published(RESULTS, artifact)]

    def _copy_results(
        self, results: Sequence[Artifact], urgent_before: Optional[int] = None
    ) -> List[Tuple[Artifact, Optional[str]]]:
        """Copy several at once on a slow file system. Returns the outcomes."""
        outcomes: List[Tuple[Artifact, Optional[str]]] = []

        def copy_result(artifact: Artifact) -> None:
            outcomes.append((artifact, self._copy(RESULTS, artifact, urgent_before)))

        pool = Crew(WORKERS)
        for artifact in results:
            pool.add(partial(copy_result, artifact))
        pool.run()
        return outcomes

    def _copy(self, kind: str, artifact: Artifact, urgent_before: Optional[int] = None) -> Optional[str]:
        try:
            self._throttle.advance(0, urgent_before)
            self._publisher.publish(kind, artifact, urgent_before)
        except OutOfTimeError:
            return OUT_OF_TIME
        except ChangedError as error:
            return str(error.strerror)  # a later round copies the complete file
        except OSError as error:
            if not os.path.lexists(artifact.source):
                return VANISHED
            problem = error.strerror or str(error)
            self._report_once(problem, f"{kind}: {artifact.name!r} cannot be copied to the run directory: {problem}")
            return problem
        with self._lock:
            self.files += max(1, len(artifact.files))
            self.bytes += artifact.size
        return COPIED

    def _report_once(self, problem: str, message: str) -> None:
        """Report a problem unless the last report was of the same problem."""
        if self._problem != problem:
            self._problem = problem
            self._report(message)

    def _on_unreadable(self, error: OSError) -> None:
        """Everything in the folder is missing, whatever it is."""
        folder, problem = str(error.filename), str(error.strerror)
        is_result = bool(self._results) and folder.startswith(self._results)
        artifact = Artifact(folder, "", folder, "", "folder", 0, 0, ())
        self._unreadable[RESULTS if is_result else CHECKPOINTS, folder] = (artifact, problem)
        self._report_once(str(error), f"cannot read {folder!r}: {problem}")

    def _prune(self) -> None:
        for root in self._roots:
            with self._reporting_removal():
                self._publisher.prune(root.pattern, self._keep)

    def _prune_local(self) -> None:
        """Delete old checkpoints from the node's disk once newer ones are in the run directory."""
        if self._keep_local is None:
            return
        kept: Set[str] = set()
        surplus: List[Artifact] = []
        for root in self._roots:
            if not root.pattern.startswith(checkpoints.LOCAL):
                continue
            published, removable = 0, []
            artifacts = [artifact for artifact in self._find(root) if not _is_log(artifact)]
            for artifact in artifacts:
                is_published = self._publisher.is_still_published(CHECKPOINTS, artifact)
                if is_published or published >= self._keep:  # pruning would delete a copy of the latter at once
                    removable.append(artifact)
                published += is_published
            kept.update(artifact.source for artifact in artifacts if artifact not in removable[self._keep_local :])
            surplus += removable[self._keep_local :]
        with self._reporting_removal():
            _remove(surplus, kept)

    @contextlib.contextmanager
    def _reporting_removal(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._report_once(str(error), f"an old checkpoint cannot be deleted: {error.strerror}")

    def _warn_if_unmatched(self) -> None:
        """Warn during the run, while the user can still act: a misspelt pattern would leave all results on the node."""
        if self._has_checked_patterns:
            return
        matched, unmatched = self._find_unmatched(self._patterns[: -len(LIBRARY_FILES)])
        unmatched = [name for name in unmatched if name not in LIBRARY_FILES]
        self._has_checked_patterns = bool(matched or unmatched)
        if unmatched and not matched:
            for sentence in outputs_left_out({"unnamed": {"files": len(unmatched), "names": unmatched}}):
                self._report(f"so far {sentence}")

    def _find_unmatched(self, patterns: List[str]) -> Tuple[List[Artifact], List[str]]:
        """The results that match patterns, and the paths of the others, which are deleted with the node's folder."""
        matched = completeness.find_results(self._results, patterns, lambda _: None)
        return matched, completeness.find_unmatched(self._results, matched) if self._patterns else []


def _is_log(artifact: Artifact) -> bool:
    return artifact.kind == "file" and checkpoints.is_log(artifact.path.rpartition("/")[2])


def _remove(artifacts: Sequence[Artifact], kept: Set[str]) -> None:
    """Delete checkpoints, but not the targets of links in `kept`, nor files that are open for writing."""
    if not artifacts:
        return
    writing = completeness.open_for_writing()
    wanted = {*kept, *map(os.path.realpath, kept)}
    for artifact in artifacts:
        is_wanted = artifact.source in wanted or os.path.realpath(artifact.source) in wanted
        if is_wanted or completeness.is_open(artifact, writing):
            continue
        if artifact.kind == "folder":
            with copy.temporary_path(Path(artifact.source).parent) as renamed:  # half a folder is not a checkpoint
                Path(artifact.source).rename(renamed)
        elif completeness.fingerprint_of(os.lstat(artifact.source)) == artifact.fingerprint:
            os.unlink(artifact.source)  # noqa: PTH108 - a bare string


def _summary(missing: Missing) -> List[Dict[str, Any]]:
    """For each kind its size, some names, and the first reason."""
    summaries = []
    for kind in (CHECKPOINTS, RESULTS):
        failures = [failure for (missing_kind, _), failure in missing.items() if missing_kind == kind]
        if failures:
            files = sum(max(1, len(artifact.files)) for artifact, _ in failures)
            size = sum(artifact.size for artifact, _ in failures)
            names = [artifact.name for artifact, _ in failures[:MOST_NAMES]]
            summaries.append({"kind": kind, "files": files, "bytes": size, "names": names, "problem": failures[0][1]})
    return summaries


POLL_SECONDS = 2.0
URGENT_POLL_SECONDS = 0.2
POLL_SHARE = 20
"""Polling takes at most one part in POLL_SHARE of the time."""
PROGRESS_SECONDS = 5.0
REMOVE_SECONDS = 300.0


# Beside a node's agent.


class AgentRequests:
    """The agent's requests so far. A thread of its own receives them, because a copy may take minutes."""

    def __init__(self, agent: helper_process.AgentConnection, limiter: publish.Throttle) -> None:
        self._agent = agent
        self._throttle = limiter
        self._received = threading.Event()
        self.finish: Optional[Dict[str, Any]] = None
        self.publish: Optional[Dict[str, Any]] = None
        self.doubts: List[Dict[str, Any]] = []
        self.is_urgent = False
        threading.Thread(target=self._listen, daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait that long, or until the next request."""
        self._received.wait(seconds)
        self._received.clear()

    def _listen(self) -> None:
        for message in self._agent.messages():
            if message["do"] in (ToHelper.HURRY, ToHelper.FINISH):
                self.is_urgent = True
                self._throttle.set_urgent()
            if message["do"] == ToHelper.FINISH:
                self.finish = message
            elif message["do"] == ToHelper.PUBLISH:
                self._throttle.suspend_limit()
                self.publish = message
            elif message["do"] == ToHelper.DOUBT:
                self.doubts.append(message)
            if message.get("seconds") is not None:
                ends_at = time.monotonic() + float(message["seconds"])
                self._throttle.ends_at = min(ends_at, self._throttle.ends_at or ends_at)
            self._received.set()
        os._exit(0)  # the agent ended, and only it knew how the ranks ended


class StageOutWorker:
    def __init__(
        self, attempt: Attempt, node: int, local: Optional[Path], scratch: Path, agent: helper_process.AgentConnection
    ) -> None:
        sync, data = attempt.plan.checkpoint or Sync(), attempt.plan.data or Data()
        self._agent = agent
        self._sync_every = float(sync.sync_every_seconds)
        self._results_every = float(data.results_every_seconds)
        self._throttle = publish.Throttle(sync.bandwidth)
        results = str(local / RESULTS) if local and data.results else ""
        self._roots = watch_roots(attempt, node, local, scratch)
        self._sync_loop = SyncLoop(Publisher(attempt, node, self._throttle), self._roots, results, self._report)
        self._requests = AgentRequests(agent, self._throttle)

    def run(self) -> None:
        next_sync = 0.0
        next_results = time.monotonic() + self._results_every
        while self._requests.finish is None:
            began = time.monotonic()
            urgent = self._requests.is_urgent
            self._doubt()
            self._publish()
            self._sync_loop.poll()
            poll_seconds = time.monotonic() - began
            if self._roots and (urgent or began >= next_sync):
                copied = self._sync_loop.sync_checkpoints(urgent=urgent)
                if copied:
                    self._agent.send(event=FromStageOut.COPIED, kind="checkpoints", names=copied[:3], **self._totals())
                    next_sync = began + self._sync_every
            if began >= next_results and not urgent:
                next_results = began + self._results_every
                with contextlib.suppress(publish.InterruptedByUrgentError, publish.OutOfTimeError):
                    if copied := self._sync_loop.sync_results():
                        self._agent.send(event=FromStageOut.COPIED, kind="results", names=copied[:3], **self._totals())
            # Polls are rare if they are slow. The time for copies does not count: the next file already waits.
            pause = max(min(POLL_SECONDS, self._sync_every, self._results_every), poll_seconds * POLL_SHARE)
            self._requests.wait(URGENT_POLL_SECONDS if urgent else pause)
        self._doubt()
        self._finish(**_trust(self._requests.finish))

    def _doubt(self) -> None:
        while self._requests.doubts:
            self._sync_loop.doubt(trusted=bool(self._requests.doubts.pop(0)["trusted"]))

    def _publish(self) -> None:
        request, self._requests.publish = self._requests.publish, None
        if request is not None:
            self._sync_loop.finish_checkpoints(**_trust(request))
            self._throttle.restore_limit()
            self._agent.send(event=FromStageOut.PUBLISHED)

    def _finish(self, *, trusted: bool, all_trusted: bool) -> None:
        began = time.monotonic()

        def send_progress() -> None:
            while True:
                time.sleep(PROGRESS_SECONDS)
                self._agent.send(event=FromStageOut.PROGRESS, moved=self._throttle.bytes_moved, **self._totals())

        threading.Thread(target=send_progress, daemon=True).start()
        summary = self._sync_loop.finish(trusted=trusted, all_trusted=all_trusted)
        seconds = round(time.monotonic() - began, 1)
        self._agent.send(event=FromStageOut.FINISHED, seconds=seconds, **summary, **self._totals())

    def _totals(self) -> Dict[str, Any]:
        return {"files": self._sync_loop.files, "bytes": self._sync_loop.bytes}

    def _report(self, message: str) -> None:
        self._agent.send(event=FromStageOut.PROBLEM, message=message)


def _trust(request: Dict[str, Any]) -> Dict[str, bool]:
    return {name: bool(request[name]) for name in ("trusted", "all_trusted")}


def main(arguments: List[str]) -> int:
    """`stage-out NODE LOCAL SCRATCH`: the node's number and folders; LOCAL is empty without a disk."""
    agent = helper_process.AgentConnection()
    publish.prioritise(publish.IDLE)
    task = os.environ.get(names.TASK)
    attempt = Attempt.load(run_directory(), int(task) if task else None, int(os.environ[names.ATTEMPT]))
    set_umask(attempt)
    local = Path(arguments[1]) if arguments[1] else None
    StageOutWorker(attempt, int(arguments[0]), local, Path(arguments[2]), agent).run()
    return 0


# In a job of its own.


def fetch(arguments: List[str]) -> int:
    """`fetch TASK ATTEMPT NODE FOLDER TOKEN`: TASK is `-` unless the run is an array.

    `serried fetch` reads the outcome from the journal.
    """
    task, number, node, folder, token = arguments
    attempt = Attempt.load(run_directory(), None if task == "-" else int(task), int(number))
    set_umask(attempt)
    directory = attempt.directory.attempt(attempt.number)
    files.make_directory(directory.node(int(node)), attempt.directory_mode)
    journal = files.Journal(directory.fetched(int(node)), attempt.file_mode)
    journal.append({"token": token, "event": JournalEvent.BEGUN, "host": os.uname().nodename, "t": time.time()})
    try:
        outcome = _recover(attempt, int(node), Path(folder))
    except BlockingIOError:
        outcome = {"problem": "another command is fetching it"}
    except OSError as error:
        outcome = {"problem": error.strerror or str(error)}
    journal.append({"token": token, "event": JournalEvent.ENDED, "t": time.time(), **outcome})
    return 0


def _recover(attempt: Attempt, node: int, folder: Path) -> Dict[str, Any]:
    if not folder.is_dir():
        return {"problem": "it no longer exists", "is_gone": True}
    held = locks.hold(folder, locks.ALONE | locks.AT_ONCE)
    try:
        problems: List[str] = []
        results = str(folder / RESULTS) if (folder / RESULTS).is_dir() else ""
        roots = watch_roots(attempt, node, folder, folder / SCRATCH)
        sync_loop = SyncLoop(Publisher(attempt, node, publish.Throttle()), roots, results, problems.append)
        exited = [_ranks_exited_by_themselves(attempt, number) for number in attempt.node_numbers]
        summary = sync_loop.finish(trusted=exited[node], all_trusted=all(exited))
        missing, torn = summary["missing"], summary["torn"]
        problem: Optional[str] = missing[0]["problem"] if missing else next(iter(problems), None)
        if problem is None and not torn:  # torn checkpoints stay, for a user to examine
            # The room of the folder, if it is in one: its trash can take the folder in one step.
            base = folder.parent.parent if folder.parent.name == JOBS else None
            discard(base, folder, time.monotonic() + REMOVE_SECONDS)
            locks.lock_of(folder).unlink(missing_ok=True)
            if base is not None:
                remove_empty_room(base)
        totals = {"files": sync_loop.files, "bytes": sync_loop.bytes}
        return {**totals, "missing": missing, "torn": torn, "problem": problem}
    finally:
        os.close(held)


def _ranks_exited_by_themselves(attempt: Attempt, node: int) -> bool:
    """Whether all ranks of the node are known to have exited by themselves, so that no file was cut off."""
    events = of_last_round(files.read_journal(attempt.directory.attempt(attempt.number).node_events(node)))
    exits = [Exit.from_json(event) for event in events if event["event"] == JournalEvent.RANK_EXIT]
    started = {event["rank"] for event in events if event["event"] == JournalEvent.STARTED}
    all_ended_well = all(exit_.exit_code in (0, names.EXIT_SAVED) for exit_ in exits)
    return all_ended_well and started <= {exit_.rank for exit_ in exits}
