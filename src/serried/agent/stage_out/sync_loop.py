"""One node's share, round by round: checkpoints first and the newest of them, then results, the small and new first."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from serried.agent.stage_out import completeness, retention
from serried.agent.stage_out.completeness import Found
from serried.agent.stage_out.file_copy import ChangedError
from serried.agent.stage_out.publish import Places
from serried.agent.stage_out.throttle import OutOfTimeError
from serried.agent.stage_out.watch_roots import Watch
from serried.fs.adaptive_pool import Crew
from serried.protocol import checkpoint_integrity, checkpoints, names
from serried.protocol.layout import CHECKPOINTS, RESULTS
from serried.protocol.missing_outputs import UNWATCHED, left_out

WORKERS = 16
"""Most that copy small files at once, where the file system takes its time."""
NAMED = 20
"""Of what is missing so many are called by name."""
OURS = (names.CONFIG_FILE, names.SMOKE_FILE)
"""Of the results: what the training library writes, whatever patterns there are."""
SPARE = 3
"""So many more than are kept are looked at: the newest may never become complete."""
OUT_OF_TIME = "there was no time left"
AGAIN_SECONDS = 5.0
"""How long is tried again what cannot be brought at the end: by then a disk may have room again."""
PAUSE_SECONDS = 1.0
UNWATCHED_NS = 60 * 10**9
"""How old what no pattern names is, before that is said: another name may still be given to it."""

BROUGHT, VANISHED = None, ""
"""What became of it; else in words why it could not be brought."""

Lacking = Dict[Tuple[str, str], Tuple[Found, str]]


class Rounds:
    def __init__(self, places: Places, watched: Sequence[Watch], results: str, say: Callable[[str], None]) -> None:
        work = places.work
        self._watches = watched
        sync = work.plan.get("sync") or {}
        self._keep, self._keep_local = int(sync.get("keep") or 1), sync.get("keep_local")
        self._results = results
        patterns = (work.plan.get("data") or {}).get("results")
        self._patterns: List[str] = [*patterns, *OURS] if results and patterns else []
        self._pace = places.pace
        self._say = say
        self._places = places
        self._looks = completeness.Looks()
        self._lock = threading.Lock()
        self._problem = ""
        self._unread: Lacking = {}
        """Folders that we may not look into."""
        self._is_warned = False
        self._results_are_named = False
        """Or it has been said that they are not."""
        self.files = 0
        self.bytes = 0

    def look(self) -> None:
        """See what checkpoints there are: what has changed by the next look is not complete."""
        self._looks.look([each for watch in self._watches for each in self._checkpoints(watch)])
        if not self._is_warned:
            late = time.time_ns() - UNWATCHED_NS
            names = [each.path for each in self._unwatched() if each.changed < late]
            self._is_warned = bool(names)
            for sentence in left_out({"unwatched": names}):
                self._say(sentence)

    def bring_checkpoints(self, *, hurried: bool = False) -> List[str]:
        """Those that are complete, the newest first; what was brought."""
        found = {watch: self._calmest(watch, hurried=hurried) for watch in self._watches}
        absent = [each for several in found.values() for each in several if not self._is_there(each)]
        complete = self._looks.settled(absent, hurried=hurried)
        wanted = [*self._wanted(found, complete), *self._logs()]
        brought = [each.name for each in wanted if self._bring(CHECKPOINTS, each) is BROUGHT]
        if brought:
            self._retire()
            self._thin()
        return brought

    def bring_results(self) -> List[str]:
        """Those that nobody writes, and what is read while it grows. Raises where checkpoints have to go first."""
        urgent = self._pace.urgent
        before = time.time_ns() - completeness.TICK_NS
        found = [each for each in self._missing_results() if each.changed < before]
        if not found:
            self._warn_of_results()
        writing = completeness.open_for_writing() if found else set()
        quiet = [each for each in found if each.state[:2] not in writing or completeness.is_read_while_it_grows(each)]
        return [each.name for each, problem in self._bring_all(quiet, urgent) if problem is BROUGHT]

    def finish(self, *, trusted: bool, all_trusted: bool) -> Dict[str, Any]:
        """Everything that is left, again and again while there is time; what is missing then.

        `trusted` says that nobody who wrote on this node was ended, `all_trusted` on any.
        """
        until = time.monotonic() + AGAIN_SECONDS
        while True:
            self._unread = {}
            found = {watch: self._newest(watch) for watch in self._watches}
            absent = [each for several in found.values() for each in several if not self._is_there(each)]
            complete = self._looks.left(absent, trusted=trusted, all_trusted=all_trusted)
            torn = [each.name for each in absent if each not in complete]
            missing: Lacking = {}
            for each in [*self._wanted(found, complete), *self._logs()]:
                problem = self._bring(CHECKPOINTS, each)
                if problem:
                    missing[CHECKPOINTS, each.name] = (each, problem)
            unwatched = self._unwatched()
            rest = [each for each in unwatched if not self._places.is_there(RESULTS, each)]
            for each, problem in self._bring_all([*self._missing_results(), *rest]):
                if problem:
                    missing[RESULTS, each.name] = (each, problem)
            self._retire()
            missing.update(self._unread)
            if not missing or time.monotonic() + PAUSE_SECONDS > min(until, self._pace.ends or until):
                break
            time.sleep(PAUSE_SECONDS)
        with contextlib.suppress(OSError):
            self._places.end()
        told = {"unwatched": [each.path for each in unwatched]} if unwatched else {}
        return {"missing": _summary(missing), "torn": torn[:NAMED], **self._unnamed(), **told}

    def _checkpoints(self, watch: Watch) -> List[Found]:
        """The newest first."""
        found = [each for each in self._watched(watch) if not _is_log(each)]
        return [each._replace(pattern=watch.pattern, is_shared=watch.is_shared) for each in found]

    def _newest(self, watch: Watch) -> List[Found]:
        """As many as are kept, and some more."""
        return self._checkpoints(watch)[: self._keep + SPARE]

    def _calmest(self, watch: Watch, *, hurried: bool) -> List[Found]:
        """The same, and older ones where all of these were written a moment ago: some programs save all the time."""
        found = self._checkpoints(watch)
        newest, older = found[: self._keep + SPARE], found[self._keep + SPARE :]
        if any(self._is_there(each) or self._looks.is_quiet(each, hurried=hurried) for each in newest):
            return newest
        quiet = (each for each in older if self._looks.is_quiet(each, hurried=hurried))
        return [*newest, *itertools.islice(quiet, self._keep)]

    def _unwatched(self) -> List[Found]:
        """The newest in `{checkpoints}` where no pattern names anything: one that is misspelt must not cost them all.

        They come to the results: nothing says that they are checkpoints, from which the next attempt could go on.
        """
        own = [watch for watch in self._watches if watch.pattern.startswith(checkpoints.IN_CHECKPOINTS)]
        if not own or self._places.has_checkpoints or any(map(self._newest, own)):
            return []
        newest = self._newest(own[0]._replace(below="*"))[: self._keep]
        return [each._replace(name=f"{UNWATCHED}/{each.name}") for each in newest]

    def _logs(self) -> List[Found]:
        """What tells of the training, and grows beside its checkpoints: all of it comes, and stays."""
        found = [each for watch in self._watches for each in self._watched(watch) if _is_log(each)]
        return [each for each in found if not self._is_there(each)]

    def _watched(self, watch: Watch) -> List[Found]:
        found = completeness.watched(watch.root, watch.below, self._unreadable)
        own = [each for each in found if each.changed > watch.since]
        return sorted(own, key=lambda each: each.changed, reverse=True)

    def _is_there(self, found: Found) -> bool:
        return self._places.is_there(CHECKPOINTS, found)

    def _wanted(self, found: Dict[Watch, List[Found]], complete: Sequence[Found]) -> List[Found]:
        """Of each pattern as many as are kept, less those that are there: an older one would go at once."""
        wanted: Dict[str, Found] = {}
        for several in found.values():
            usable = [each for each in several if each in complete or self._is_there(each)]
            for each in usable[: self._keep]:
                if not self._is_there(each):
                    wanted.setdefault(each.source, each)  # one file may have a name that two patterns fit
        return sorted(wanted.values(), key=lambda each: each.changed, reverse=True)

    def _missing_results(self) -> List[Found]:
        found = completeness.results(self._results, self._patterns, self._unreadable) if self._patterns else []
        found.sort(key=lambda each: (each.size.bit_length() // 4, -each.changed))
        return [each for each in found if not self._places.is_there(RESULTS, each)]

    def _bring_all(self, results: Sequence[Found], urgent: Optional[int] = None) -> List[Tuple[Found, Optional[str]]]:
        """Several at once where each takes its time; what became of each."""
        told: List[Tuple[Found, Optional[str]]] = []
        crew = Crew(WORKERS)
        for each in results:
            crew.add(lambda each=each: told.append((each, self._bring(RESULTS, each, urgent))))  # type: ignore[misc]
        crew.run()
        return told

    def _bring(self, kind: str, found: Found, urgent: Optional[int] = None) -> Optional[str]:
        try:
            self._pace.heed(0, urgent)
            self._places.put(kind, found, urgent)
        except OutOfTimeError:
            return OUT_OF_TIME
        except ChangedError as error:
            return str(error.strerror)  # it will be brought when it is complete
        except OSError as error:
            if not os.path.lexists(found.source):
                return VANISHED
            problem = error.strerror or str(error)
            self._loudly(problem, f"{kind}: {found.name!r} cannot be brought back: {problem}")
            return problem
        with self._lock:
            self.files += max(1, len(found.files))
            self.bytes += found.size
        return BROUGHT

    def _loudly(self, problem: str, message: str) -> None:
        """Once, until it is another."""
        if self._problem != problem:
            self._problem = problem
            self._say(message)

    def _unreadable(self, error: OSError) -> None:
        """What is in there is missing, whatever it is."""
        folder, problem = str(error.filename), str(error.strerror)
        is_result = bool(self._results) and folder.startswith(self._results)
        found = Found(folder, "", folder, "", "folder", 0, 0, ())
        self._unread[RESULTS if is_result else CHECKPOINTS, folder] = (found, problem)
        self._loudly(str(error), f"cannot look into {folder!r}: {problem}")

    def _retire(self) -> None:
        for watch in self._watches:
            try:
                self._places.retire(watch.pattern, self._keep)
            except OSError as error:
                self._loudly(str(error), f"an old checkpoint cannot be removed: {error.strerror}")

    def _thin(self) -> None:
        """The node's disk need not hold every checkpoint that a program has ever written."""
        if self._keep_local is None:
            return
        kept: Set[str] = set()
        spare: List[Found] = []
        for watch in self._watches:
            if watch.pattern.startswith(checkpoints.LOCAL):
                found = [each for each in self._watched(watch) if not _is_log(each)]
                may_go = retention.spare(found, self._places.is_safe, self._keep, self._keep_local)
                kept.update(each.source for each in found if each not in may_go)
                spare += may_go
        try:
            retention.remove(spare, kept)
        except OSError as error:
            self._loudly(str(error), f"an old checkpoint cannot be removed: {error.strerror}")

    def _warn_of_results(self) -> None:
        """While there is time to stop: a misspelt pattern would leave all of them on the node."""
        if self._results_are_named:
            return
        own = completeness.results(self._results, self._patterns[: -len(OURS)], lambda _: None)
        left = [name for name in completeness.unnamed(self._results, own) if name not in OURS]
        self._results_are_named = bool(own or left)
        if left and not own:
            for sentence in left_out({"unnamed": {"files": len(left), "names": left}}):
                self._say(f"so far {sentence}")

    def _unnamed(self) -> Dict[str, Any]:
        """What ranks wrote and no pattern names goes with the node: that must not come as a surprise."""
        if not self._patterns:
            return {}
        named = completeness.results(self._results, self._patterns, lambda _: None)
        left = completeness.unnamed(self._results, named)
        return {"unnamed": {"files": len(left), "names": left[:NAMED]}} if left else {}


def _is_log(found: Found) -> bool:
    return found.kind == "file" and checkpoint_integrity.is_log(found.path.rpartition("/")[2])


def _summary(missing: Lacking) -> List[Dict[str, Any]]:
    """For each kind how much, some of the names, and why."""
    told = []
    for kind in (CHECKPOINTS, RESULTS):
        lacking = [(found, problem) for (one, _), (found, problem) in missing.items() if one == kind]
        if lacking:
            told.append(
                {
                    "kind": kind,
                    "files": sum(max(1, len(found.files)) for found, _ in lacking),
                    "bytes": sum(found.size for found, _ in lacking),
                    "names": [found.name for found, _ in lacking[:NAMED]],
                    "problem": lacking[0][1],
                }
            )
    return told
