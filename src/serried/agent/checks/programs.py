"""The node's end of part `pairs`: starts a probe for each rank of the node, and passes its results on to the head.

A probe is a rank with another command: the same environment, container, folder, CPUs and GPUs. What a library prints
there is no result; its last lines are kept for a probe that dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any, Callable, Dict, List, Sequence

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.checks.probe import DONE, EXITED, MEASURED, STARTED, ProbeJob, ProbeResult
from serried.agent.comms import rendezvous
from serried.agent.loop import Loop
from serried.agent.ranks import binding, command
from serried.base.channel import CHUNK
from serried.schema.codec import facts_of, from_json
from serried.schema.events import ToHead

PORTS = 6
"""Reserved on each node for the stores of its groups: one for each round."""
LAST_LINES = 5
FATAL = "Fatal Python error"
"""The first words of the handler of faults. The stack that follows is that of the probe."""
NCCL_DIAGNOSIS = "NCCL DIAG"
FIND_PYTHON = (
    'for it in python python3; do command -v $it >/dev/null && exec $it "$@"; done; '
    'echo "no python in PATH" >&2; exit 127'
)


class ProbePrograms:
    def __init__(self, loop: Loop, attempt: Attempt, node: int, send: Callable[..., None]) -> None:
        self._loop, self._attempt, self._node, self._send = loop, attempt, node, send
        self._running: Dict[int, _Program] = {}
        """By local rank."""
        self._ports = [rendezvous.hold_port() for _ in range(PORTS)]
        send(ToHead.PROBED, ports=[port.getsockname()[1] for port in self._ports])

    def run(self, job: ProbeJob, active: int, ranks: int, variables: Dict[str, Any]) -> None:
        """Pass a job on to the first `active` of `ranks` programs. Starts those that do not run or hang.

        `variables` are those of a rank of this node, as far as they are known before its data is staged.
        """
        attempt = _with_probe(self._attempt, ranks)
        cpus = binding.shares(ranks)
        for local in range(active):
            program = self._running.get(local)
            if program is None or program.is_busy:
                if program:
                    program.kill()
                rank, threads = self._node * ranks + local, binding.threads(attempt)
                place = command.RankPlace(node=self._node, rank=rank, local_rank=local, threads=threads, **variables)
                program = self._running[local] = _Program(self._loop, attempt, place, cpus[local], self._report)
            is_first = local == 0 and not job.size
            program.send(
                job._replace(
                    local_rank=local,
                    rank=job.rank + local,
                    host=job.host or str(variables["master"]),
                    root=job.root and str(attempt.directory.path) if is_first else "",
                    disk=job.root and str(variables["local"]) if is_first else "",
                )
            )

    def _report(self, program: _Program, results: Sequence[ProbeResult]) -> None:
        if self._running.get(program.local_rank) is program:
            if program.has_ended:
                del self._running[program.local_rank]
            self._send(ToHead.PROBED, round=program.round, results=[facts_of(result) for result in results])

    def end(self) -> None:
        running, self._running = self._running, {}
        for program in running.values():
            program.kill()
        for port in self._ports:
            port.close()


def _with_probe(attempt: Attempt, ranks: int) -> Attempt:
    """The same attempt, in which each rank is a probe. The agent starts it, whatever starts the ranks."""
    plan = attempt.plan
    name = os.path.basename(plan.command[0]) if plan.command and not plan.shell else ""  # noqa: PTH119 - a bare string
    is_python = name.startswith("python") and not name[len("python") :].strip(".0123456789")
    python = (plan.command[0],) if is_python else ("/bin/sh", "-c", FIND_PYTHON, "sh")
    launch, words = plan.launch._replace(kind="agent"), (*python, str(attempt.run.agent), "probe")
    plan = plan._replace(command=words, shell=False, script=None, array=None, sweep=None, debug=False, launch=launch)
    return Attempt(attempt.run, plan, attempt.task, attempt.number).resized(nodes=attempt.agents, ranks=ranks)


class _Program:
    """One probe: its jobs go to its standard input, its results come from its output."""

    def __init__(
        self,
        loop: Loop,
        attempt: Attempt,
        place: command.RankPlace,
        cpus: Sequence[int],
        report: Callable[[_Program, Sequence[ProbeResult]], None],
    ) -> None:
        self._loop, self._report = loop, report
        self.local_rank, self.round = place.local_rank, 0
        self.is_busy = self.has_ended = False
        self._partial = b""
        self._said: List[str] = []
        self._started = time.monotonic()
        jobs, self._jobs = os.pipe()
        self._results, results = os.pipe()
        os.set_blocking(self._results, False)
        self._child = system.spawn(
            *command.program(attempt, place),
            (jobs, results, results),
            directory=str(attempt.workdir),
            cpus=cpus,
            parent_death=signal.SIGKILL,
            own_group=True,
        )
        os.close(jobs)
        os.close(results)
        loop.watch(self._results, self._read)

    def send(self, job: ProbeJob) -> None:
        self.is_busy, self.round = True, job.round
        with contextlib.suppress(OSError):  # it has died: the end of its output follows
            os.write(self._jobs, json.dumps(facts_of(job)).encode() + b"\n")

    def kill(self) -> None:
        if not self.has_ended:
            system.send_signal(self._child.pid, signal.SIGKILL, to_group=True)
            self._close()

    def _read(self) -> None:
        data = os.read(self._results, CHUNK)
        *lines, self._partial = (self._partial + data).split(b"\n")
        results = [result for line in lines for result in self._understood(line)]
        if not data:
            problem = self._close()
            because = f"{problem[0]}: {os.strerror(problem[1])}" if problem else " / ".join(self._said)
            results.append(ProbeResult(EXITED, problem=because or "it printed nothing"))
        if results:
            self._report(self, [result._replace(local_rank=self.local_rank) for result in results])

    def _understood(self, line: bytes) -> List[ProbeResult]:
        try:
            result = from_json(ProbeResult, json.loads(line)["serried"])
        except (ValueError, KeyError, TypeError):
            text = line.decode("utf-8", "replace").strip()
            if text and not "".join(self._said[-1:]).startswith(FATAL):
                self._said = [*self._said, text][-LAST_LINES:]
            return [ProbeResult(MEASURED, "nccl", problem=text[:300])] if NCCL_DIAGNOSIS in text else []
        if result.kind == STARTED:
            return [result._replace(seconds=round(time.monotonic() - self._started, 3))]
        self.is_busy = self.is_busy and not (result.kind == DONE and result.round == self.round)
        return [result]

    def _close(self) -> Any:
        """The step of its start that failed, or None."""
        self.has_ended = True
        self._loop.forget(self._results)
        os.close(self._results)
        os.close(self._jobs)
        return self._child.problem()
