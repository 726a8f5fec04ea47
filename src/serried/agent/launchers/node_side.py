"""The ranks of one node where a launcher starts them: received, told what to run, heard, let go.

A rank that has ended stays in the launcher's eyes until all ranks of all nodes have, or the attempt is being ended: so
it is us who end the others, with their grace, as where no launcher is. Only a launcher that may start failed ranks
again is told of a failure at once; it is not one until the launcher gives up.
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Work
from serried.agent.comms.channel import Message
from serried.agent.launchers import kinds, launcher_process, rank_identity
from serried.agent.launchers.listener import Door, Guest, Reactions
from serried.agent.launchers.remote_exec import Remotes
from serried.agent.loop import Loop
from serried.agent.outcome.evidence import AS_ASKED
from serried.agent.ranks import binding, command, program
from serried.agent.ranks.ranks import Exit, Rank, Ranks, has_failed

LAST_SECONDS = 2.0
"""From a launcher's TERM to its KILL, when none of its ranks is left."""


class Post(NamedTuple):
    """What the node agent lends."""

    loop: Loop
    tell: Callable[..., None]
    """Say something to the head."""
    note: Callable[..., None]
    """Write it into this node's journal."""
    changed: Callable[[], None]
    """Something has ended: look."""


class Launched(Ranks):
    def __init__(self, work: Work, node: int, place: Dict[str, Any], kind: kinds.Kind, post: Post) -> None:
        super().__init__(work, node, place["stop_file"])
        self._place = place
        self._kind = kind
        self._post = post
        self._shares = binding.shares(work.ranks)
        self._door: Optional[Door] = None
        self._remotes = Remotes(work, node, post.loop, post.tell)
        self._ended: List[Exit] = []
        """Not yet told by `reap`."""
        self._excused: Dict[int, Exit] = {}
        """Failures that the launcher may make good."""
        self._has_begun = False
        self._is_stopping = False
        self._is_released = False
        self._was_killed = False
        """A launcher, by a signal."""
        self._has_head_seen_the_end = False
        """No launcher runs any more, on any node."""
        self._starter: Optional[launcher_process.Starter] = None
        self._farewell: Optional[Dict[str, Any]] = None

    def begin(self, where: str, hosts: Sequence[str], address: str, folder: Path) -> None:
        """Open the door, then start the launcher if it is this node's to start."""
        threads = binding.threads(self.work)
        here = command.Place(node=self.node, rank=0, local_rank=0, threads=threads, **self._place)
        self._remotes.begin(here, hosts, folder)
        reactions = Reactions(self._welcome, self._watch, self._end, self._lose)
        try:
            self._door = Door(self._post.loop, where, reactions, self._remotes)
        except OSError as error:
            self._post.tell("starter-wrong", message=f"cannot receive ranks on {socket.gethostname()}: {error}")
            return
        if not (self._kind.everywhere or self.node == 0):
            return
        scene = kinds.Scene(
            work=self.work,
            node=self.node,
            hosts=hosts,
            master=self._place["master"],
            address=address,
            port=self._place["port"],
            rank=launcher_process.rank_words(self.work, self._kind, system.agent_command("rank", where)),
            folder=folder,
            remote=system.agent_command("remote", where),
        )
        self._starter = launcher_process.start(self._kind, scene, here)
        self._post.note("launching", argv=self._starter.said, pid=self._starter.pid)

    @property
    def _guests(self) -> List[Guest]:
        return self._door.guests if self._door else []

    # Who comes.

    def _welcome(self, guest: Guest, environ: Dict[str, str]) -> None:
        found = rank_identity.read(self._kind.sources, environ, self.work.nodes * self.work.ranks)
        alive = {other.number: other.incarnation for other in self._guests if not other.has_ended}
        wrong = rank_identity.objection(self.work, self._kind.sources, found, alive)
        if wrong or self._is_stopping or self._is_released:
            guest.line.send({"refused": wrong or "the attempt is being ended"})
            if wrong:
                self._post.tell("starter-wrong", message=wrong)
            return
        assert found is not None  # noqa: S101 - `objection` would have said so
        guest.number, guest.incarnation = found.rank, found.incarnation
        guest.local = self._free_seat() if found.local_rank is None else found.local_rank
        self._forgive(guest)
        cpus = self._shares[guest.local] if guest.local < len(self._shares) else []
        threads = binding.threads(self.work)
        here = command.Place(node=self.node, rank=guest.number, local_rank=guest.local, threads=threads, **self._place)
        what = program.of(self.work, here, rank_identity.handed(self.work, environ), is_inside=self._kind.is_inside)
        told = {
            "argv": what.argv,
            "environment": what.environment,
            "directory": str(self.work.workdir),
            "log": str(self.log_of(guest.number)),
            "mode": self.work.file_mode,
            "cpus": cpus,
        }
        guest.line.send({"run": told})

    def _free_seat(self) -> int:
        taken = {guest.local for guest in self._guests}
        return next(seat for seat in range(len(self._guests) + 1) if seat not in taken)

    def _forgive(self, guest: Guest) -> None:
        """It is started again: what became of it before does not count."""
        self.exits = [exit_ for exit_ in self.exits if exit_["rank"] != guest.number]
        self._ended = [exit_ for exit_ in self._ended if exit_["rank"] != guest.number]
        before = self._excused.pop(guest.number, None)
        if before is not None:
            self._post.note("rank-restarted", **before)
            with self.log_of(guest.number).open("ab") as log:
                log.write(f"serried: {self.work.launcher} starts this rank again\n".encode())

    def _watch(self, guest: Guest, pid: int) -> None:
        rank = Rank(guest.number, guest.local, pid, self.open_log(guest.number))
        guest.rank = self._running[pid] = rank
        self.leaders.append(pid)
        if not self._has_begun:
            self._has_begun = True
            self._post.tell("started")
        self._post.note("started", rank=rank.number, local_rank=rank.local, pid=pid)
        self._post.tell("rank-began", rank=rank.number)
        if self._is_stopping:
            self.terminate()

    # How they end.

    def _end(self, guest: Guest, message: Dict[str, Any]) -> None:
        guest.has_ended = True
        problem = tuple(message["problem"]) if message["problem"] else None
        exit_ = self.record(self._forget(guest), message["ended"], problem, is_oom=message["oom"])
        self._conclude(guest, exit_, was_told=bool(message["told"]))

    def _lose(self, guest: Guest) -> None:
        """If its program had not ended, somebody killed the guest, and its program with it."""
        if guest.is_starting and not guest.has_ended:
            exit_ = self.record(self._forget(guest), signal.SIGKILL, None, is_oom=False)
            self._conclude(guest, {**exit_, "vanished": True}, was_told=self._is_stopping)

    def _forget(self, guest: Guest) -> Rank:
        """Its program does not run any more, or never began."""
        rank = guest.rank or Rank(guest.number, guest.local, 0, self.open_log(guest.number))
        self._running.pop(rank.pid, None)
        return rank

    def _conclude(self, guest: Guest, exit_: Exit, *, was_told: bool) -> None:
        """`was_told`: the launcher has sent it a signal, or the attempt is being ended: it did not end by itself."""
        exit_["ended_by_us"] = exit_["ended_by_us"] or was_told
        may_return = self._may_start_again(guest, exit_)
        if may_return:
            self._excused[guest.number] = exit_
            self._post.note("rank-excused", **exit_)
        else:
            self._ended.append(exit_)
            taken = was_told and not self._is_stopping
            self._post.tell("rank-ended", rank=guest.number, well=not has_failed(exit_), taken=taken)
        if may_return or self._is_released:
            self._let_go(guest)
        self._post.changed()

    def _may_start_again(self, guest: Guest, exit_: Exit) -> bool:
        most = int(self.work.plan["launch"]["max_restarts"])
        if not has_failed(exit_) or guest.incarnation >= most or self._is_stopping:
            return False
        return not (self.have_been_asked and exit_["exit_code"] in AS_ASKED)

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:
        self._remotes.reap(children)
        for pid, status in children:
            if self._starter and pid == self._starter.pid:
                self._starter_ended(self._starter, status)
        ended, self._ended = self._ended, []
        self.exits += ended
        return ended

    def _starter_ended(self, starter: launcher_process.Starter, status: int) -> None:
        starter.end(status)
        self._was_killed = bool(starter.status and starter.status < 0)
        self._accuse()
        self._farewell = starter.farewell()

    def _accuse(self) -> None:
        """Nobody makes good what has failed any more."""
        for number in self._excused:
            self._post.tell("rank-ended", rank=number, well=False, taken=self._excused[number]["ended_by_us"])
        self._ended += self._excused.values()
        self._excused.clear()

    def say_farewell(self, *, are_told: bool) -> None:
        if self._farewell and (are_told or self._was_killed):  # whether it was decides on how ranks elsewhere ended
            self._post.note("starter-ended", **self._farewell)
            self._post.tell("starter-ended", **self._farewell)
            self._farewell = None

    @property
    def are_over(self) -> bool:
        return not self._running and not self._is_launched

    @property
    def _is_launched(self) -> bool:
        return self._starter.is_running if self._starter else not self._has_head_seen_the_end

    def heed(self, message: Message) -> None:
        if message["do"] == "remote":
            self._remotes.heed(message)
        elif message["do"] == "release":
            self._release(message["patience"])
        elif message["do"] == "starters-ended":
            self._has_head_seen_the_end = True
            self._was_killed = message["killed"]

    def lose_head(self) -> None:
        self._has_head_seen_the_end = True
        self._release(self.work.grace)

    def was_taken_along(self, exit_: Exit) -> bool:
        return bool(exit_.get("vanished")) and self._was_killed

    # The end.

    def _release(self, patience: float) -> None:
        """Let the launcher see how its ranks have ended; it has `patience` seconds to end itself."""
        if self._is_released:
            return
        self._is_released = True
        failed = any(has_failed(exit_) for exit_ in [*self.exits, *self._ended])
        if failed and self.work.plan["launch"]["max_restarts"] and self._starter:  # it would begin anew
            self._starter.terminate()
        for guest in [guest for guest in self._guests if guest.has_ended]:
            self._let_go(guest)
        self._end_starter(patience)

    def _let_go(self, guest: Guest) -> None:
        guest.line.send({"leave": True})

    def terminate(self) -> None:
        self._stop()
        super().terminate()

    def abort(self) -> None:
        self._stop()
        super().abort()

    def _stop(self) -> None:
        self._is_stopping = True
        self._accuse()

    def kill(self) -> None:
        self._is_stopping = True
        super().kill()
        self._remotes.kill()
        self._release(0.0)
        self._end_starter(0.0)

    def _end_starter(self, patience: float) -> None:
        """TERM after `patience` seconds, KILL soon after."""
        if self._starter:
            self._post.loop.after(patience, self._starter.terminate)
            self._post.loop.after(patience + LAST_SECONDS, self._starter.kill)
