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
    reason: Reason
    by: str
    """The user and host that sent the request."""
    may_save: bool


def outweighs(reason: str, before: Optional[str]) -> bool:
    """Whether a request to save takes precedence over an earlier stop for the reason `before`."""
    weights = STOPS
    return before is None or (before in weights and weights.index(reason) > weights.index(before))


def by_user(control: Path) -> Optional[Stop]:
    """A user's request to stop, even if no head received it: no attempt follows after that."""
    stops = Requests(control).stops()
    return next((stop for stop in stops if stop.reason in (Reason.USER, Reason.CANCEL)), None)


class Requests:
    def __init__(self, control: Path) -> None:
        self._control = control
        self._read = 0

    def stops(self) -> List[Stop]:
        """The requests to stop since the last call. Opens the file each time, so that NFS asks the server."""
        requests = files.read_journal(self._control)
        new, self._read = requests[self._read :], len(requests)
        return [_stop(request) for request in new if request.get("request") == "stop"]


def _stop(request: Dict[str, Any]) -> Stop:
    """Parse a request. An unknown reason counts as a user's, after which no attempt follows."""
    reason = request.get("reason")
    known = Reason(reason) if reason in STOPS else Reason.USER
    return Stop(known, str(request.get("by", "")), request.get("save") is True)
