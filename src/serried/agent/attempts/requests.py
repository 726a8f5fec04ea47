"""Requests from outside: each line of control.jsonl is one, and the head alone reads them.

`{"request": "stop", "reason": "user", "by": "ada@login1"}` ends the ranks: TERM, `limit.grace`, KILL. With
`"save": true` ranks receive the stop notice, as before the time limit; those that have not left after
`limit.warn_before` are ended. With reason `limit` or `preempt` the run may continue in another attempt, with `user`
never.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from serried.fs import files
from serried.protocol.reasons import STOPS, Reason


class Stop(NamedTuple):
    reason: str
    by: str
    """Who asked."""
    may_save: bool


def outweighs(reason: str, before: Optional[str]) -> bool:
    """Whether to heed a request to save after one for the reason `before`, or after ranks are being ended for it."""
    weights = STOPS
    return before is None or (before in weights and weights.index(reason) > weights.index(before))


def by_user(control: Path) -> Optional[Stop]:
    """The request of a user to stop, whether or not a head lived to heed it: nothing continues after that."""
    stops = Requests(control).stops()
    return next((stop for stop in stops if stop.reason in (Reason.USER, Reason.CANCEL)), None)


class Requests:
    def __init__(self, control: Path) -> None:
        self._control = control
        self._read = 0

    def stops(self) -> List[Stop]:
        """The requests to stop since the last call. Opened anew each time, so that NFS looks at the server."""
        requests = files.read_journal(self._control)
        new, self._read = requests[self._read :], len(requests)
        return [_stop(request) for request in new if request.get("request") == "stop"]


def _stop(request: Dict[str, Any]) -> Stop:
    """A reason that we do not know is a user's: nothing continues after that."""
    reason = request.get("reason")
    known = reason if reason in STOPS else Reason.USER
    return Stop(known, str(request.get("by", "")), request.get("save") is True)
