"""The agent's side of bringing back: where its ranks write, the process beside it, and how long that may take."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Optional

from serried.agent import system
from serried.agent.attempt import Work
from serried.agent.helper_process import Beside, Message
from serried.agent.loop import Loop, Timer
from serried.agent.node_disk import Folder
from serried.protocol.checkpoints import IN_CHECKPOINTS
from serried.protocol.layout import CHECKPOINTS, RESULTS
from serried.protocol.missing_outputs import left_out
from serried.protocol.reasons import Reason

KEEP_SECONDS = 3 * 86400.0
"""How long what could not be brought stays on the node for `serried fetch`."""
AGAIN_SECONDS, RARELY_SECONDS = 0.5, 30.0
"""After which a process that has ended is started again; each time it takes twice as long, but not longer than that."""
STARTS = 5
"""How often it is when ranks have ended."""
STALLED_SECONDS = 120.0
"""After which a process that copies nothing is given up: its file system may never answer."""
LATE_SECONDS = 2.0
"""Before the end of its budget, to say what is missing; a tenth of a short patience."""

KILLED_SECONDS = 1.0
"""After the grace, until what is ended has ended on other nodes too."""
LOST_SECONDS = 6.0
RESERVE_SECONDS = 5.0
"""For the head to write down how it all ended, before the scheduler's KILL."""

Then = Callable[[Dict[str, Any]], None]


class Bringing:
    def __init__(self, loop: Loop, work: Work, node: int, folder: Folder, note: Callable[..., None]) -> None:
        self._loop = loop
        self._work = work
        self._node = node
        self._folder = folder
        self._note = note
        self._beside: Optional[Beside] = None
        self._starts = 0
        self._is_settled = False
        self._then: Optional[Then] = None
        self._trusted = False
        self._is_hurried = False
        self._ends: Optional[float] = None
        """When it has to be over, on the monotonic clock."""
        self._moved = (0, 0.0)
        """How much has been copied, and since when it is that much."""
        self._watch: Optional[Timer] = None
        patterns = (work.plan.get("sync") or {}).get("watch", ())
        watched = [pattern for pattern in patterns if folder.has_disk or not pattern.startswith(IN_CHECKPOINTS)]
        self._has_results = bool((work.plan.get("data") or {}).get("results")) and folder.has_disk
        self._has_checkpoints = any(pattern.startswith(IN_CHECKPOINTS) for pattern in watched)
        self._is_local = self._has_results or any(pattern[0] in "{$" for pattern in watched)
        """Something that is brought is on this node alone."""
        self._waits_for_others = work.nodes > 1 and node == 0 and any(pattern[0] not in "{$" for pattern in watched)
        """Ranks of other nodes may still write what this one watches."""
        self._were_ended = False
        """Ranks, somewhere: one may have been in the midst of writing."""
        self._is_finishing = False
        self._is_wanted = self._is_local or (node == 0 and bool(watched))

    def begin(self, left: Optional[float]) -> Dict[str, str]:
        """Ranks are about to start, and the scheduler ends us in `left` seconds; where they are to write."""
        if left is not None:
            self.bound(left)
        own = {RESULTS: self._has_results, CHECKPOINTS: self._has_checkpoints}
        place = {name: str(self._folder.path / name) for name, is_ours in own.items() if is_ours}
        for path in place.values():
            os.mkdir(path, 0o700)  # noqa: PTH102 - a bare string
        if self._is_wanted:
            if self._is_local:
                self._folder.keep(KEEP_SECONDS)
            self._note("bringing", folder=str(self._folder.path), kinds=self._kinds())
            self._start()
        return place

    def hurry(self) -> None:
        """The end is near: what is complete goes at once."""
        if not self._is_hurried:
            self._is_hurried = True
            self._tell({"do": "hurry"})

    @property
    def is_over(self) -> bool:
        """Once ranks have ended: whether it is known what is missing."""
        return self._then is None

    @property
    def word(self) -> Dict[str, Any]:
        """With each beat: whether ranks have ended here, and how many seconds nobody should give us up for then."""
        left = STALLED_SECONDS if self._ends is None else min(STALLED_SECONDS, self._ends - time.monotonic())
        patience = 0.0 if self._then is None else max(0.0, left) + LATE_SECONDS
        return {"over": self._then is not None or self._is_settled, "patience": patience}

    def heed(self, message: Message) -> None:
        """The head says that ranks have ended on all nodes."""
        if message["do"] == "all-over":
            self._wait_no_longer()

    def stop(self, reason: str, grace: float) -> None:
        """Ranks are being ended, everywhere. After the scheduler's TERM its KILL will follow."""
        self._were_ended = True
        self.hurry()
        self._loop.after(grace + KILLED_SECONDS, self._wait_no_longer)
        if reason == Reason.CANCEL:
            self.bound(self._work.patience - min(RESERVE_SECONDS, self._work.patience / 5))

    def lose(self, grace: float) -> None:
        """Nobody hears us any more, and job.sh does not wait much longer than the ranks' `grace`."""
        self.bound(grace + LOST_SECONDS)
        self._wait_no_longer()

    def bound(self, seconds: float) -> None:
        """It has to be over in so many seconds."""
        ends = time.monotonic() + max(0.0, seconds)
        if self._ends is None or ends < self._ends:
            self._ends = ends
            if self._is_finishing:
                self._tell(self._finish())

    def finish(self, then: Then, *, trusted: bool) -> None:
        """Call `then` with what is missing when all that can be is there.

        `trusted` says that all who wrote have left by themselves.
        """
        if not self._starts:
            then({})
            return
        self._then, self._trusted = then, trusted
        if not self._waits_for_others:
            self._begin_to_finish()

    def _wait_no_longer(self) -> None:
        self._waits_for_others = False
        if self._then and not self._is_finishing:
            self._begin_to_finish()

    def _begin_to_finish(self) -> None:
        self._is_finishing = True
        self._moved = (0, time.monotonic())
        self._starts = 1
        if self._beside is None:
            self._start()
        else:
            self._tell(self._finish())
        self._check()

    def _start(self) -> None:
        if self._beside or self._is_settled:
            return
        self._starts += 1
        local = str(self._folder.path) if self._folder.has_disk else ""
        scratch = os.environ.get("SLURM_TMPDIR") or str(self._folder.scratch)
        self._beside = Beside(self._loop, "bring", [str(self._node), local, scratch], self._heed)
        if self._is_finishing:
            self._tell(self._finish())
        elif self._is_hurried:
            self._tell({"do": "hurry"})

    def _finish(self) -> Message:
        seconds = None
        if self._ends is not None:
            late = min(LATE_SECONDS, self._work.patience / 10)
            seconds = max(0.0, self._ends - late - time.monotonic())
        trusted = {"trusted": self._trusted, "all_trusted": self._trusted and not self._were_ended}
        return {"do": "finish", **trusted, "seconds": seconds}

    def _tell(self, message: Message) -> None:
        if self._beside:
            self._beside.tell(message)

    def _heed(self, message: Optional[Message]) -> None:
        if message is None:
            self._ended()
        elif message["event"] == "finished":
            self._settle(message)
        elif message["event"] == "problem":
            system.say(message["message"])
            self._note("bring-problem", message=message["message"])
        elif message["event"] == "progress":
            if message["moved"] != self._moved[0]:
                self._moved = (message["moved"], time.monotonic())
        else:
            self._note(**message)

    def _ended(self) -> None:
        """It was killed, or could not start: again, some times."""
        self._beside = None
        if self._is_finishing and self._starts > STARTS:
            self._give_up(f"the process that copies has ended {STARTS} times")
        elif not self._is_settled:
            self._note("bring-again", starts=self._starts)
            pause = AGAIN_SECONDS if self._is_finishing else AGAIN_SECONDS * 2 ** min(self._starts - 1, 10)
            self._loop.after(min(pause, RARELY_SECONDS), self._start)

    def _check(self) -> None:
        """Give up one that is stuck, or does not mind the time."""
        if self._then is None:
            return
        now = time.monotonic()
        if self._ends is not None and now > self._ends:
            self._give_up("there was no time left")
        elif now - self._moved[1] > STALLED_SECONDS:
            self._give_up(f"nothing could be copied for {STALLED_SECONDS:.0f} s")
        else:
            self._watch = self._loop.after(0.2, self._check)

    def _give_up(self, problem: str) -> None:
        if self._beside:
            self._beside.kill()
        self._settle({"missing": [{"kind": kind, "names": [], "problem": problem} for kind in self._kinds()]})

    def _kinds(self) -> List[str]:
        return [CHECKPOINTS] * bool(self._work.plan.get("sync")) + [RESULTS] * self._has_results

    def _settle(self, found: Message) -> None:
        """Once: what is missing goes to the head, and the folder stays only if something is."""
        if self._then is None:
            return
        then, self._then = self._then, None
        self._is_settled = True
        facts = {name: value for name, value in found.items() if name != "event"}
        missing = [{**one, "folder": str(self._folder.path)} for one in facts.get("missing", ())]
        for one in missing:
            system.say(f"{one['kind']} could not be brought back: {one['problem']}")
        for name in facts.get("torn", ()):
            system.say(f"checkpoint {name!r} may be torn, and was not brought back")
        for sentence in left_out(facts):
            system.say(sentence)
        self._note("all-brought", **{**facts, "missing": missing})
        if not missing:
            self._folder.let_go()
        then({"missing": missing} if missing else {})
