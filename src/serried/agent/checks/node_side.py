"""A node agent's end of the checks: starts the process that looks, and forwards its facts to the head."""

from __future__ import annotations

import os
from typing import Callable, List, Optional

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.comms.channel import sign
from serried.agent.helper_process import HelperProcess
from serried.agent.loop import Loop
from serried.agent.node_disk.folder import Folder
from serried.base.channel import Message
from serried.schema.events import ToHead, ToHelper, ToNode

NICENESS = 5
"""Gets a quarter of a core beside a rank: it needs half a second in all, and is over when ranks have loaded torch."""
IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""Variables by which libraries choose an interface."""


class NodeChecks:
    def __init__(self, loop: Loop, attempt: Attempt, index: int, folder: Folder, send: Callable[..., None]) -> None:
        self._loop, self._attempt, self._index, self._folder, self._send = loop, attempt, index, folder, send
        self._process: Optional[HelperProcess] = None
        self._again: Optional[HelperProcess] = None
        self._has_facts = False
        self._answer: Optional[Callable[[str], None]] = None
        self._ports: List[str] = []
        """The ports of InfiniBand that were active at the beginning."""

    def begin(self, key: bytes, master: str) -> None:
        """Start the process. It gives way to ranks that do not wait for it."""
        attempt, plan = self._attempt, self._attempt.plan
        if attempt.agents == 1 and not plan.preflight:
            return
        niceness = 0 if plan.preflight else NICENESS
        try:
            self._process = HelperProcess(self._loop, "check", (), self._on_message, niceness=niceness)
        except OSError as error:
            system.log(f"cannot start the checks: {error}")
            return
        variables = {**os.environ, **plan.environment.env}
        self._process.send(
            {
                "do": ToHelper.CHECK,
                "node": self._index,
                "nodes": attempt.agents,
                "key": sign(key, "checks"),  # a greeting that was recorded here opens no other port
                "master": master,
                "disk": str(self._folder.path),
                "root": str(attempt.run.path),
                "claim": str(attempt.files.claim),
                "command": "" if plan.container or attempt.is_script else " ".join(plan.command[:1]) or "python",
                "workdir": str(attempt.workdir),
                "variables": dict(plan.environment.env),
                "chosen": {name: variables[name] for name in IFNAMES if variables.get(name)},
                "has_gpus": bool(plan.allocation.gpus),
                "gpus": attempt.visible_gpus,
                "mark": attempt.process_tag,
            }
        )

    def look_again(self, on_answer: Callable[[str], None], *, is_suspect: bool) -> None:
        """Before another round. `on_answer` gets what makes this node unfit, or an empty text: perhaps at once."""
        attempt, plan = self._attempt, self._attempt.plan
        if not (is_suspect or plan.allocation.gpus):
            on_answer("")
            return
        try:
            self._again = HelperProcess(self._loop, "check", (), self._on_answer)
        except OSError as error:
            system.log(f"cannot look at this node again: {error}")
            on_answer("")
            return
        self._answer = on_answer
        self._again.send(
            {
                "do": ToHelper.CHECK_AGAIN,
                "has_gpus": bool(plan.allocation.gpus),
                "gpus": attempt.visible_gpus,
                "is_shared": plan.site.is_this_machine and not plan.site.inside,
                "is_suspect": is_suspect,
                "claim": str(attempt.files.claim),
                "ports": self._ports,
            }
        )

    def _on_answer(self, message: Optional[Message]) -> None:
        on_answer, self._answer = self._answer, None
        if on_answer and self._again:
            self._again.kill()
            on_answer(message["unfit"] if message else "")

    def on_message(self, message: Message) -> None:
        if self._process and message["do"] == ToNode.CHECK_PEERS:
            if message["peers"] is None:
                self.end()
            else:
                self._process.send(message)

    def end(self) -> None:
        if self._process:
            self._process.kill()
            self._process = None

    def _on_message(self, message: Optional[Message]) -> None:
        if message is not None:
            self._has_facts = True
            ports = message["facts"].get("ports", ())
            self._ports = self._ports or [port["name"] for port in ports if port["state"] == "ACTIVE"]
            self._send(**message)
        elif self._process:
            self._process = None
            kind = ToHead.PEER_FACTS if self._has_facts else ToHead.NODE_FACTS
            self._send(kind, facts={"node": self._index, "problem": "the process that checks it was killed"})
