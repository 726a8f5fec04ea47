"""Copies one node's files in rounds: the newest checkpoints first, then results, small and new ones first."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from serried.agent.stage_out import completeness, retention
from serried.agent.stage_out.completeness import Artifact
from serried.agent.stage_out.file_copy import ChangedError
from serried.agent.stage_out.publish import Publisher
from serried.agent.stage_out.throttle import OutOfTimeError
from serried.agent.stage_out.watch_roots import WatchRoot
from serried.fs.adaptive_pool import Crew
from serried.protocol import checkpoint_integrity, checkpoints, names
from serried.protocol.layout import CHECKPOINTS, RESULTS
from serried.protocol.missing_outputs import UNWATCHED, left_out

WORKERS = 16
"""Most that copy small files at once, where the file system takes its time."""
MOST_NAMES = 20
"""Of what is missing so many are called by name."""
LIBRARY_FILES = (names.CONFIG_FILE, names.SMOKE_FILE)
"""Of the results: what the training library writes, whatever patterns there are."""
EXTRA_CANDIDATES = 3
"""So many more than are kept are looked at: the newest may never become complete."""
OUT_OF_TIME = "there was no time left"
AGAIN_SECONDS = 5.0
"""How long is tried again what cannot be brought at the end: by then a disk may have room again."""
PAUSE_SECONDS = 1.0
UNWATCHED_NS = 60 * 10**9
"""How old what no pattern names is, before that is said: another name may still be given to it."""

COPIED, VANISHED = None, ""
"""What became of it; else in words why it could not be brought."""

Missing = Dict[Tuple[str, str], Tuple[Artifact, str]]


class SyncLoop:
    def __init__(
        self, publisher: Publisher, roots: Sequence[WatchRoot], results: str, report: Callable[[str], None]
    ) -> None:
        work = publisher.work
        self._roots = roots
        sync = work.plan.get("sync") or {}
        self._keep, self._keep_local = int(sync.get("keep") or 1), sync.get("keep_local")
        self._results = results
        patterns = (work.plan.get("data") or {}).get("results")
        self._patterns: List[str] = [*patterns, *LIBRARY_FILES] if results and patterns else []
        self._throttle = publisher.throttle
        self._report = report
        self._publisher = publisher
        self._tracker = completeness.ChangeTracker()
        self._lock = threading.Lock()
        self._problem = ""
        self._unreadable: Missing = {}
        """Folders that we may not look into."""
        self._is_warned = False
        self._has_checked_patterns = False
        """Or it has been said that they are not."""
        self.files = 0
        self.bytes = 0

    def poll(self) -> None:
        """See what checkpoints there are: what has changed by the next look is not complete."""
        self._tracker.update([artifact for root in self._roots for artifact in self._checkpoints(root)])
        if not self._is_warned:
            before_ns = time.time_ns() - UNWATCHED_NS
            names = [artifact.path for artifact in self._unwatched() if artifact.mtime_ns < before_ns]
            self._is_warned = bool(names)
            for sentence in left_out({"unwatched": names}):
                self._report(sentence)

    def sync_checkpoints(self, *, urgent: bool = False) -> List[str]:
        """Those that are complete, the newest first; what was brought."""
        candidates = {root: self._stable_candidates(root, urgent=urgent) for root in self._roots}
        unpublished = [
            artifact for artifacts in candidates.values() for artifact in artifacts if not self._is_published(artifact)
        ]
        complete = self._tracker.settled(unpublished, urgent=urgent)
        wanted = [*self._select(candidates, complete), *self._logs()]
        copied = [artifact.name for artifact in wanted if self._copy(CHECKPOINTS, artifact) is COPIED]
        if copied:
            self._prune()
            self._prune_local()
        return copied

    def sync_results(self) -> List[str]:
        """Those that nobody writes, and what is read while it grows. Raises where checkpoints have to go first."""
        urgent_before = self._throttle.urgent_requests
        before = time.time_ns() - completeness.TICK_NS
        artifacts = [artifact for artifact in self._unpublished_results() if artifact.mtime_ns < before]
        if not artifacts:
            self._warn_if_unmatched()
        writing = completeness.open_for_writing() if artifacts else set()
        quiet = [
            artifact
            for artifact in artifacts
            if artifact.fingerprint[:2] not in writing or completeness.is_append_only_text(artifact)
        ]
        return [artifact.name for artifact, problem in self._copy_results(quiet, urgent_before) if problem is COPIED]

    def finish(self, *, trusted: bool, all_trusted: bool) -> Dict[str, Any]:
        """Everything that is left, again and again while there is time; what is missing then.

        `trusted` says that nobody who wrote on this node was ended, `all_trusted` on any.
        """
        until = time.monotonic() + AGAIN_SECONDS
        while True:
            self._unreadable = {}
            candidates = {root: self._newest(root) for root in self._roots}
            unpublished = [
                artifact
                for artifacts in candidates.values()
                for artifact in artifacts
                if not self._is_published(artifact)
            ]
            complete = self._tracker.complete_at_end(unpublished, trusted=trusted, all_trusted=all_trusted)
            torn = [artifact.name for artifact in unpublished if artifact not in complete]
            missing: Missing = {}
            for artifact in [*self._select(candidates, complete), *self._logs()]:
                problem = self._copy(CHECKPOINTS, artifact)
                if problem:
                    missing[CHECKPOINTS, artifact.name] = (artifact, problem)
            unwatched = self._unwatched()
            rest = [artifact for artifact in unwatched if not self._publisher.is_published(RESULTS, artifact)]
            for artifact, problem in self._copy_results([*self._unpublished_results(), *rest]):
                if problem:
                    missing[RESULTS, artifact.name] = (artifact, problem)
            self._prune()
            missing.update(self._unreadable)
            if not missing or time.monotonic() + PAUSE_SECONDS > min(until, self._throttle.ends_at or until):
                break
            time.sleep(PAUSE_SECONDS)
        with contextlib.suppress(OSError):
            self._publisher.close()
        facts = {"unwatched": [artifact.path for artifact in unwatched]} if unwatched else {}
        return {"missing": _summary(missing), "torn": torn[:MOST_NAMES], **self._unmatched(), **facts}

    def _checkpoints(self, root: WatchRoot) -> List[Artifact]:
        """The newest first."""
        artifacts = [artifact for artifact in self._find(root) if not _is_log(artifact)]
        return [artifact._replace(pattern=root.pattern, is_shared=root.is_shared) for artifact in artifacts]

    def _newest(self, root: WatchRoot) -> List[Artifact]:
        """As many as are kept, and some more."""
        return self._checkpoints(root)[: self._keep + EXTRA_CANDIDATES]

    def _stable_candidates(self, root: WatchRoot, *, urgent: bool) -> List[Artifact]:
        """The same, and older ones where all of these were written a moment ago: some programs save all the time."""
        artifacts = self._checkpoints(root)
        newest, older = artifacts[: self._keep + EXTRA_CANDIDATES], artifacts[self._keep + EXTRA_CANDIDATES :]
        if any(self._is_published(artifact) or self._tracker.is_quiet(artifact, urgent=urgent) for artifact in newest):
            return newest
        quiet = (artifact for artifact in older if self._tracker.is_quiet(artifact, urgent=urgent))
        return [*newest, *itertools.islice(quiet, self._keep)]

    def _unwatched(self) -> List[Artifact]:
        """The newest in `{checkpoints}` where no pattern names anything: one that is misspelt must not cost them all.

        They come to the results: nothing says that they are checkpoints, from which the next attempt could go on.
        """
        own = [root for root in self._roots if root.pattern.startswith(checkpoints.IN_CHECKPOINTS)]
        if not own or self._publisher.has_checkpoints or any(map(self._newest, own)):
            return []
        newest = self._newest(own[0]._replace(below="*"))[: self._keep]
        return [artifact._replace(name=f"{UNWATCHED}/{artifact.name}") for artifact in newest]

    def _logs(self) -> List[Artifact]:
        """What tells of the training, and grows beside its checkpoints: all of it comes, and stays."""
        artifacts = [artifact for root in self._roots for artifact in self._find(root) if _is_log(artifact)]
        return [artifact for artifact in artifacts if not self._is_published(artifact)]

    def _find(self, root: WatchRoot) -> List[Artifact]:
        artifacts = completeness.find_checkpoints(root.root, root.below, self._on_unreadable)
        own = [artifact for artifact in artifacts if artifact.mtime_ns > root.since]
        return sorted(own, key=lambda artifact: artifact.mtime_ns, reverse=True)

    def _is_published(self, artifact: Artifact) -> bool:
        return self._publisher.is_published(CHECKPOINTS, artifact)

    def _select(self, candidates: Dict[WatchRoot, List[Artifact]], complete: Sequence[Artifact]) -> List[Artifact]:
        """Of each pattern as many as are kept, less those that are there: an older one would go at once."""
        selected: Dict[str, Artifact] = {}
        for artifacts in candidates.values():
            usable = [artifact for artifact in artifacts if artifact in complete or self._is_published(artifact)]
            for artifact in usable[: self._keep]:
                if not self._is_published(artifact):
                    selected.setdefault(artifact.source, artifact)  # one file may have a name that two patterns fit
        return sorted(selected.values(), key=lambda artifact: artifact.mtime_ns, reverse=True)

    def _unpublished_results(self) -> List[Artifact]:
        artifacts = (
            completeness.find_results(self._results, self._patterns, self._on_unreadable) if self._patterns else []
        )
        artifacts.sort(key=lambda artifact: (artifact.size.bit_length() // 4, -artifact.mtime_ns))
        return [artifact for artifact in artifacts if not self._publisher.is_published(RESULTS, artifact)]

    def _copy_results(
        self, results: Sequence[Artifact], urgent_before: Optional[int] = None
    ) -> List[Tuple[Artifact, Optional[str]]]:
        """Several at once where each takes its time; what became of each."""
        outcomes: List[Tuple[Artifact, Optional[str]]] = []
        pool = Crew(WORKERS)
        for artifact in results:
            pool.add(partial(self._copy_result, artifact, urgent_before, outcomes))
        pool.run()
        return outcomes

    def _copy_result(
        self, artifact: Artifact, urgent_before: Optional[int], outcomes: List[Tuple[Artifact, Optional[str]]]
    ) -> None:
        outcomes.append((artifact, self._copy(RESULTS, artifact, urgent_before)))

    def _copy(self, kind: str, artifact: Artifact, urgent_before: Optional[int] = None) -> Optional[str]:
        try:
            self._throttle.advance(0, urgent_before)
            self._publisher.publish(kind, artifact, urgent_before)
        except OutOfTimeError:
            return OUT_OF_TIME
        except ChangedError as error:
            return str(error.strerror)  # it will be brought when it is complete
        except OSError as error:
            if not os.path.lexists(artifact.source):
                return VANISHED
            problem = error.strerror or str(error)
            self._report_once(problem, f"{kind}: {artifact.name!r} cannot be brought back: {problem}")
            return problem
        with self._lock:
            self.files += max(1, len(artifact.files))
            self.bytes += artifact.size
        return COPIED

    def _report_once(self, problem: str, message: str) -> None:
        """Once, until it is another."""
        if self._problem != problem:
            self._problem = problem
            self._report(message)

    def _on_unreadable(self, error: OSError) -> None:
        """What is in there is missing, whatever it is."""
        folder, problem = str(error.filename), str(error.strerror)
        is_result = bool(self._results) and folder.startswith(self._results)
        artifact = Artifact(folder, "", folder, "", "folder", 0, 0, ())
        self._unreadable[RESULTS if is_result else CHECKPOINTS, folder] = (artifact, problem)
        self._report_once(str(error), f"cannot look into {folder!r}: {problem}")

    def _prune(self) -> None:
        for root in self._roots:
            try:
                self._publisher.prune(root.pattern, self._keep)
            except OSError as error:
                self._report_once(str(error), f"an old checkpoint cannot be removed: {error.strerror}")

    def _prune_local(self) -> None:
        """The node's disk need not hold every checkpoint that a program has ever written."""
        if self._keep_local is None:
            return
        kept: Set[str] = set()
        surplus: List[Artifact] = []
        for root in self._roots:
            if root.pattern.startswith(checkpoints.LOCAL):
                artifacts = [artifact for artifact in self._find(root) if not _is_log(artifact)]
                removable = retention.find_surplus(
                    artifacts, self._publisher.is_still_published, self._keep, self._keep_local
                )
                kept.update(artifact.source for artifact in artifacts if artifact not in removable)
                surplus += removable
        try:
            retention.remove_surplus(surplus, kept)
        except OSError as error:
            self._report_once(str(error), f"an old checkpoint cannot be removed: {error.strerror}")

    def _warn_if_unmatched(self) -> None:
        """While there is time to stop: a misspelt pattern would leave all of them on the node."""
        if self._has_checked_patterns:
            return
        matched = completeness.find_results(self._results, self._patterns[: -len(LIBRARY_FILES)], lambda _: None)
        unmatched = [name for name in completeness.find_unmatched(self._results, matched) if name not in LIBRARY_FILES]
        self._has_checked_patterns = bool(matched or unmatched)
        if unmatched and not matched:
            for sentence in left_out({"unnamed": {"files": len(unmatched), "names": unmatched}}):
                self._report(f"so far {sentence}")

    def _unmatched(self) -> Dict[str, Any]:
        """What ranks wrote and no pattern names goes with the node: that must not come as a surprise."""
        if not self._patterns:
            return {}
        matched = completeness.find_results(self._results, self._patterns, lambda _: None)
        unmatched = completeness.find_unmatched(self._results, matched)
        return {"unnamed": {"files": len(unmatched), "names": unmatched[:MOST_NAMES]}} if unmatched else {}


def _is_log(artifact: Artifact) -> bool:
    return artifact.kind == "file" and checkpoint_integrity.is_log(artifact.path.rpartition("/")[2])


def _summary(missing: Missing) -> List[Dict[str, Any]]:
    """For each kind how much, some of the names, and why."""
    summaries = []
    for kind in (CHECKPOINTS, RESULTS):
        artifacts = [
            (artifact, problem) for (missing_kind, _), (artifact, problem) in missing.items() if missing_kind == kind
        ]
        if artifacts:
            summaries.append(
                {
                    "kind": kind,
                    "files": sum(max(1, len(artifact.files)) for artifact, _ in artifacts),
                    "bytes": sum(artifact.size for artifact, _ in artifacts),
                    "names": [artifact.name for artifact, _ in artifacts[:MOST_NAMES]],
                    "problem": artifacts[0][1],
                }
            )
    return summaries
