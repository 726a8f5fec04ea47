"""The user's job script, which a run with `script` has instead of ranks.

The head starts the script: as a child of job.sh it has the environment, control group and GPUs that the scheduler gives
to a batch script. The agents of the nodes only stage files and watch. The first of them reports the script's exit as
that of the only rank.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple, cast

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers.processes import NodeServices
from serried.agent.ranks import command
from serried.agent.ranks.ranks import Exit, ForkedRanks, Ranks, catches
from serried.protocol import names
from serried.protocol.events import ToNode
from serried.protocol.json_lines import Message

if TYPE_CHECKING:
    from serried.protocol.plan_json import ScriptJson


class ScriptProcess(ForkedRanks):
    """The process of the script, on the head's side."""

    def __init__(self, work: Attempt, place: Dict[str, Any]) -> None:
        Ranks.__init__(self, work, 0, place["stop_file"])
        self._prepare()
        script = cast("ScriptJson", work.plan["script"])
        self._umask, self._input = script["umask"], script["input"]
        self._gets_notice = script["notice_to"] != "ranks"
        link_log(work, os.environ.get(names.SCRIPT_LOG, ""))
        self._add(command.RankPlace(node=0, rank=names.SCRIPT_RANK, local_rank=0, threads=0, **place), [])

    def _open_input(self) -> int:
        with contextlib.suppress(OSError):
            if self._input:
                return os.open(self.work.workdir / self._input, os.O_RDONLY)
        return super()._open_input()

    def notify(self, name: Optional[str]) -> None:
        """Send the notice to the script itself if it has a trap. A shell without one would die of the signal."""
        self.are_notified = True
        if not name or not self._gets_notice:
            return
        number = int(getattr(signal, f"SIG{name}"))
        for rank in self.running:
            if catches(rank.pid, number):
                self._notice = number
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(rank.pid, number)

    @property
    def running_numbers(self) -> List[int]:
        return [rank.number for rank in self.running]


def link_log(work: Attempt, path: str) -> None:
    """Let `path`, where the user expects the script's output, be a link to the log, unless a file is there."""
    if not path:
        return
    link, log = work.workdir / path, work.directory.attempt(work.number).script_log
    try:
        if link.is_symlink():
            link.unlink()
        link.symlink_to(log)
    except OSError as error:
        system.log(
            f"`{link}` does not lead to the script's output ({os.strerror(error.errno or 0).lower()}): see {log}"
        )


class ScriptNode(Ranks):
    """A node's side: it has no rank of its own and is done when the script has ended."""

    def __init__(self, work: Attempt, node: int, variables: Dict[str, Any], agent: NodeServices) -> None:
        super().__init__(work, node, variables["stop_file"])
        self._agent = agent
        self._unreaped: List[Exit] = []
        self._has_ended = False

    @property
    def have_ended(self) -> bool:
        return self._has_ended

    @property
    def may_leave_processes(self) -> bool:
        return True

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:  # noqa: ARG002 - they belong to no rank
        ended, self._unreaped = self._unreaped, []
        self.exits += ended
        return ended

    def on_message(self, message: Message) -> None:
        if message["do"] == ToNode.SCRIPT_ENDED:
            self._end(message["exit"])

    def on_head_lost(self) -> None:
        self._end(None)

    def _end(self, exit_: Optional[Exit]) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if exit_ is not None and self.node == 0:
            self._unreaped.append(exit_)
        self._agent.reap()
