"""The agent of one node: starts its ranks when the head says so, reports, stops them when told, leaves nothing behind.

It exits 0 whatever its ranks did: a launcher that sees anything else ends the other nodes without a chance to save.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Dict, List, Optional

from serried.agent import orphans, system
from serried.agent.attempt import Work
from serried.agent.comms.channel import Channel, Message
from serried.agent.containers import image_cache
from serried.agent.launchers import kinds
from serried.agent.loop import Loop, Timer
from serried.agent.node.exits import Exits
from serried.agent.node_disk import Folder, cleanup
from serried.agent.ranks import connections
from serried.agent.ranks.ranks import Forked, Ranks, has_failed
from serried.agent.stage_in.node_side import Staging
from serried.agent.stage_out.node_side import Bringing
from serried.fs import files
from serried.protocol import names
from serried.protocol.reasons import Reason

SILENT_HEAD_SECONDS = 60.0
REMOVE_SECONDS, HURRIED_SECONDS = 10.0, 2.0
"""For what the ranks leave on this node's disk to go at the end; the rest goes when the next job comes."""
ABORT_SECONDS = 0.5
"""For a rank that did not heed TERM to write down where it was, before its KILL."""


class Node:
    def __init__(self, work: Work, index: int, key: bytes, channel: Channel, master: str) -> None:
        self.work = work
        self.loop = Loop()
        self._key = key
        self._index = index
        self._channel: Optional[Channel] = channel
        self._heard = self.loop.awake()
        self._master, self._address = master, channel.connection.getsockname()[0]
        attempt = work.place.attempt(work.number)
        files.make_directory(attempt.node(index), work.directory_mode)
        self._journal = files.Journal(attempt.node_events(index), work.file_mode)
        self._folder = Folder(work, index)
        self._private = self._folder.path
        self._image = image_cache.Copy(self.loop, work, self._folder, self._note)
        self._staging = Staging(self.loop, work, self._folder, self._note, self._tell)
        self._bring = Bringing(self.loop, work, index, self._folder, self._note)
        self._parent = os.getppid()
        self._ranks: Optional[Ranks] = None
        self._contact: Optional[connections.Contact] = None
        self._exits = Exits(self.loop, self._note, self._tell, self._check_end)
        self._is_stopping = False
        """TERM has been sent, or there is nothing to send it to."""
        self._is_hurried = False
        self._is_done = False
        self._kill: Optional[Timer] = None
        self._lingering_since = 0.0

    def run(self) -> None:
        system.adopt_orphans()
        cleanup.look(self.work)
        system.die_with_parent(signal.SIGHUP)
        self.loop.on_signal(signal.SIGTERM, self._terminated)
        self.loop.on_signal(signal.SIGHUP, self._check_parent)
        self.loop.on_signal(signal.SIGUSR1, lambda: None)
        self.loop.on_signal(signal.SIGCHLD, self._reap)
        self.loop.every(self.work.beat_seconds, self._beat)
        if self._channel:
            self.loop.watch(self._channel.connection, self._receive)
        self._staging.prepare(self._index, self._key, self._address, self._master)
        try:
            self.loop.run()
        finally:
            until = time.monotonic() + (HURRIED_SECONDS if self._is_hurried else REMOVE_SECONDS)
            self._staging.release(until - time.monotonic())
            self._image.release()
            self._folder.remove(until - time.monotonic())

    # What the head says.

    def _receive(self) -> None:
        if self._channel is None:
            return
        messages = self._channel.hear()
        if messages is None:
            self._lose_head()
            return
        self._heard = self.loop.awake()
        for message in messages:
            self._heed(message)

    def _heed(self, message: Message) -> None:
        self._staging.heed(message)
        self._bring.heed(message)
        if message["do"] == "go":
            self._image.then(lambda: self._go(message))
        elif message["do"] == "stop" and message["hard"]:
            self._stop(message["reason"], message["grace"])
        elif message["do"] == "stop":
            self._ask_to_save(message["reason"])
        elif message["do"] == "bye":
            self._leave()
        elif self._ranks:
            self._ranks.heed(message)
            self._check_end()

    def _go(self, message: Message) -> None:
        if self._is_stopping:
            return
        place = {**message["place"], "master": self._master, "stop_file": str(self._private / "stop")}
        place.update(self._bring.begin(message["left"]), local=str(self._folder.scratch), **self._staging.place)
        kind = kinds.of(self.work)
        if kind is None:
            self._contact = connections.prepare(self.work, place["port"], self._leaders)
            self._ranks = Forked(self.work, self._index, place)
            for rank in self._ranks.running:
                self._note("started", rank=rank.number, local_rank=rank.local, pid=rank.pid)
            self._tell("started")
            if self._contact:
                self._contact.begin(self.loop, self._tell)
        else:
            from serried.agent.launchers import local_socket
            from serried.agent.launchers.node_side import Launched, Post

            post = Post(self.loop, self._tell, self._note, self._reap)
            self._ranks = ranks = Launched(self.work, self._index, place, kind, post)
            ranks.begin(local_socket.word(self._key, self._private), message["hosts"], self._address, self._private)
        self._reap()

    def _leaders(self) -> List[int]:
        return [rank.pid for rank in self._ranks.running] if self._ranks else []

    def _lose_head(self) -> None:
        """Nobody can tell us anything any more: end what runs here."""
        if self._channel:
            self.loop.forget(self._channel.connection)
            self._channel.close()
            self._channel = None
            self._note("head-lost")
        self._stop(Reason.LOST, self.work.grace)
        if self._ranks:
            self._ranks.lose_head()
        self._bring.lose(self.work.grace)
        if self._is_done and self._bring.is_over:
            self._leave()

    def _leave(self) -> None:
        self._note("ended")
        self.loop.stop()

    # What this node sees.

    def _beat(self) -> None:
        self._check_parent()
        self._folder.touch()
        if self._channel and self.loop.awake() - self._heard > SILENT_HEAD_SECONDS:
            self._lose_head()
        running = [rank.number for rank in self._ranks.running] if self._ranks else []
        quiet = self._ranks.quiet_seconds() if self._ranks and running else 0.0
        self._tell("beat", quiet=round(quiet, 1), running=running, **self._bring.word)

    def _check_parent(self) -> None:
        """Whether the launcher's process on this node is gone: then the scheduler has lost this node."""
        if os.getppid() != self._parent and not self._is_stopping:
            self._tell("orphaned")
            self._stop(Reason.LOST, self.work.hurried_grace)
            self._bring.lose(self.work.hurried_grace)

    def _terminated(self) -> None:
        """TERM comes from the scheduler, to all of us at once."""
        if not self._is_stopping:
            self._tell("stop", reason=Reason.CANCEL)
        self._stop(Reason.CANCEL, self.work.hurried_grace)

    def _reap(self) -> None:
        children = system.reap()
        if self._ranks is None:
            return
        if self._contact and children:
            self._contact.glance()
        for exit_ in self._ranks.reap(children):
            self._exits.take(self._ranks, exit_, is_stopping=self._is_stopping)
        self._check_end()

    # Stopping.

    def _ask_to_save(self, reason: str) -> None:
        """Tell ranks that the end is near: they may save and leave in their own time."""
        self._note_stop(reason)
        self._bring.hurry()
        if self._ranks:
            self._ranks.tell(self.work.plan["limit"]["notify"])

    def _stop(self, reason: str, grace: float) -> None:
        """TERM now, KILL after `grace` seconds. A second stop can only bring the KILL forward."""
        self._is_hurried |= reason in (Reason.CANCEL, Reason.LOST)
        self._bring.stop(reason, grace)
        if reason == Reason.CANCEL:
            self._exits.excuse()
        if self._ranks and not self._is_stopping:
            self._reap()
        if not self._is_stopping:
            self._is_stopping = True
            self._note_stop(reason)
            if self._ranks and reason == Reason.SILENCE:  # where they hang is what one wants to know
                self._ranks.abort()
            elif self._ranks:
                self._ranks.terminate()
            if self._ranks:
                self._exits.release(self._ranks, stumbled=True)
        if self._ranks and (self._kill is None or self._kill.due > time.monotonic() + grace):
            if self._kill:
                self._kill.cancel()
            self._kill = self.loop.after(grace, self._end_ranks)
        self._check_end()

    def _end_ranks(self) -> None:
        if self._ranks:
            self._ranks.abort()
            self._kill = self.loop.after(ABORT_SECONDS, self._ranks.kill)

    def _note_stop(self, reason: str) -> None:
        self._note("stopping", reason=reason)
        with contextlib.suppress(OSError):  # a full /tmp must not keep ranks from being ended
            files.write_text(self._private / "stop", reason)

    # The end.

    def _check_end(self) -> None:
        """Finish once every rank has ended; let what they left end by itself first, if all went well."""
        if self._ranks:
            self._ranks.say_farewell(are_told=self._exits.are_told)
        if self._ranks is None and self._is_stopping and not self._is_done:
            self._finish([])
        if self._is_done or self._ranks is None or not self._ranks.are_over or not self._exits.are_told:
            return
        left = [it for it in self._leftovers() if not it.is_of_setup]
        can_wait = not self._is_stopping and not any(has_failed(exit_) for exit_ in self._ranks.exits)
        if left and can_wait and self._may_linger():
            return
        self._finish([it.command for it in left] if can_wait else [])

    def _may_linger(self) -> bool:
        """Look again soon, until the grace is over: a helper often ends a moment after its program."""
        self._lingering_since = self._lingering_since or time.monotonic()
        lingered = time.monotonic() - self._lingering_since
        if lingered > self.work.grace:
            return False
        self.loop.after(min(1.0, 0.02 + lingered), self._check_end)
        return True

    def _leftovers(self) -> List[orphans.Leftover]:
        return orphans.leftovers(self.work.mark, self._index, os.getpid())

    def _finish(self, left: List[str]) -> None:
        self._is_done = True
        if self._kill:
            self._kill.cancel()
        may_trust = bool(self._ranks and self._ranks.have_left) and all(it.is_of_setup for it in self._leftovers())
        count = orphans.end(self._leftovers, self._hear_of_the_last)
        orphans.end_groups(self._ranks.leaders if self._ranks else [])
        self._note("swept", count=count, left=left)
        unsaved = files.read_json(self._private / f"stop{names.UNSAVED_SUFFIX}")
        told = {"exits": self._ranks.exits if self._ranks else [], "left": left, "swept": count, "unsaved": unsaved}
        if self._contact:
            told.update(contact=self._contact.is_seen, cpu_seconds=round(self._contact.cpu_seconds, 2))
        self._bring.finish(lambda missing: self._say_done({**told, **missing}), trusted=may_trust)
        self._tell("beat", quiet=0.0, running=[], **self._bring.word)

    def _hear_of_the_last(self) -> None:
        """Ranks have ended; but on another node somebody may wait for what has run here at a launcher's wish."""
        children = system.reap()
        if self._ranks:
            self._ranks.reap(children)

    def _say_done(self, facts: Dict[str, Any]) -> None:
        self._tell("done", **facts)
        if self._channel is None:
            self._leave()

    def _note(self, event: str, **facts: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk must not keep ranks from being ended: the head knows too
            self._journal.append({"t": round(time.time(), 3), "event": event, **facts})

    def _tell(self, event: str, **facts: Any) -> None:
        if self._channel:
            self._channel.send({"event": event, **facts})
            self.loop.watch(self._channel.connection, self._receive, writable=bool(self._channel.backlog))
