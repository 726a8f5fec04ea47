"""The user's job script, on the head's side. A run with `script` has it instead of ranks.

The head starts the script: as a child of job.sh it has the environment, control group and GPUs that the scheduler gives
to a batch script. Launchers that it calls are intercepted (`interception`), and their ranks connect to the agents of
their nodes (`script_node`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple, cast

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import shell_functions
from serried.agent.ranks import command
from serried.agent.ranks.ranks import ForkedRanks, Ranks, catches
from serried.base import files, linux
from serried.base.json_lines import Message
from serried.base.text import show_duration
from serried.schema import names
from serried.schema.events import ToHead
from serried.schema.plan import UserScript
from serried.schema.reasons import Reason


class ScriptLaunches:
    """Which launches of the script run, and which of their ranks have failed and were not started again."""

    def __init__(self) -> None:
        self._nodes: Dict[str, Set[int]] = {}
        """The nodes on which ranks of a launch run."""
        self._failures: List[Tuple[float, str, Dict[str, Any]]] = []
        """By time: when, on which host, and the exit."""

    def on_message(self, node: int, host: str, now: float, message: Message) -> None:
        event = message["event"]
        if event == ToHead.LAUNCH_RUNS:
            nodes = self._nodes.setdefault(message["launch"], set())
            (nodes.add if message["runs"] else nodes.discard)(node)
            if not nodes:
                del self._nodes[message["launch"]]
                self._failures = [it for it in self._failures if _of_script(it[2]["launch"]) != message["launch"]]
        elif event == ToHead.LAUNCHED_RANK_FAILED and not message["exit"].get("stumbled"):
            self._failures.append((now, host, message["exit"]))
        elif event == ToHead.LAUNCHED_RANK_RESTARTED:
            key, restarts = (host, message["launch"], message["within"]), message["restarts"]
            self._failures = [
                (at, on, exit_)
                for at, on, exit_ in self._failures
                if (on, exit_["launch"], exit_["within"]) != key or exit_["restarts"] >= restarts
            ]

    @property
    def running(self) -> List[str]:
        return list(self._nodes)

    def warnings(self, now: float) -> List[Dict[str, Any]]:
        """The first failed rank of each launch that runs."""
        firsts: Dict[str, Tuple[float, str, Dict[str, Any]]] = {}
        for failure in self._failures:
            firsts.setdefault(_of_script(failure[2]["launch"]), failure)
        return [
            {
                "code": Reason.RANK_FAILED,
                "message": f"{how_it_failed(exit_, host)} {show_duration(int(now - at))} ago,"
                f" and other ranks of launch {launch} still run",
                "ranks": [exit_["rank"]],
            }
            for launch, (at, host, exit_) in firsts.items()
            if launch in self._nodes
        ]


def _of_script(launch: str) -> str:
    """The launch of the script in which a launch is."""
    return launch.partition(".")[0]


def how_it_failed(exit_: Dict[str, Any], host: str) -> str:
    how = f"was killed by signal {exit_['signal']}" if exit_["signal"] else f"exited with status {exit_['exit_code']}"
    return f"rank {exit_['rank']} of launch {exit_['launch']} on {host} {how}"


class ScriptProcess(ForkedRanks):
    def __init__(self, work: Attempt, place: Dict[str, Any], address: str) -> None:
        """Start the script. Ranks connect to the agents of their nodes at `address`."""
        Ranks.__init__(self, work, 0, place["stop_file"])
        self._prepare()
        script = cast("UserScript", work.plan.script)
        after_login = os.environ.get(names.SCRIPT_UMASK)
        self._umask, self._input = int(after_login, 8) if after_login else script.umask, script.input
        self._gets_notice = script.notice_to != "ranks"
        self._attempt = work.directory.attempt(work.number)
        self._address = address
        self.launches = ScriptLaunches()
        for path in os.environ.get(names.SCRIPT_LOGS, "").splitlines():
            link_log(work, path)
        self._add(command.RankPlace(node=0, rank=names.SCRIPT_RANK, local_rank=0, threads=0, **place), [])

    def _program(self, place: command.RankPlace) -> command.Program:
        program = super()._program(place)
        return program._replace(environment=self._with_shims(program.environment))

    def _with_shims(self, environment: Dict[str, str]) -> Dict[str, str]:
        """The environment in which launchers are intercepted; as it was if nothing can run in the run directory."""
        folder = shell_functions.folder(self._attempt.path)
        try:
            files.make_directory(self._attempt.launches, self.work.directory_mode)
            variables = shell_functions.write(folder, system.agent_command("")[:-1], self._address)
        except OSError as error:
            system.log(f"launchers in the script are not intercepted: {error}")
            return environment
        if not os.access(folder / "rank", os.X_OK):
            system.log(f"launchers in the script are not intercepted: `{folder}` does not allow programs")
            return environment
        path = os.pathsep.join([str(folder / "bin"), environment.get("PATH", os.defpath)])
        own = {**variables, names.LAUNCHES: str(self._attempt.launches), "PATH": path}
        if environment.get("BASH_ENV"):
            own[names.USER_BASH_ENV] = environment["BASH_ENV"]
        return names.put(environment, own)

    def _open_input(self) -> int:
        with contextlib.suppress(OSError):
            if self._input:
                return os.open(self.work.workdir / self._input, os.O_RDONLY)
        return super()._open_input()

    def send_notice(self, name: Optional[str]) -> Optional[str]:
        """Send the notice to the script itself if it has a trap. A shell without one would die of the signal.

        Return the signal if the script got it, or if only its ranks get it.
        """
        self.are_notified = True
        if not name or not self._gets_notice:
            return name
        number = int(getattr(signal, f"SIG{name}"))
        for rank in self.running:
            if catches(rank.pid, number):
                self._notice = number
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(rank.pid, number)
        return name if self._notice else None

    def terminate(self) -> None:
        """Send TERM to the script and its programs, except launchers: these would kill ranks that still save.

        The agents send TERM to the ranks, and a launcher ends after its ranks.
        """
        launchers = self._launcher_pids()
        for rank in self.running:
            for pid in linux.group_members(rank.pid) or [rank.pid]:
                if pid == rank.pid or pid not in launchers:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGTERM)
            rank.stop(0, everything=False)

    def _launcher_pids(self) -> Set[int]:
        here = os.uname().nodename
        return {document["pid"] for document in read_launches(self._attempt.launches) if document.get("host") == here}

    @property
    def running_numbers(self) -> List[int]:
        return [rank.number for rank in self.running]

    def launch_facts(self) -> Dict[str, Any]:
        """The fields of JournalEvent.LAUNCHES: the newest launches, and failed calls, first those that count."""
        launches = read_launches(self._attempt.launches)
        failures = _documents(self._attempt.launches / "failures")
        failures.sort(key=lambda document: (bool(document.get("handled")), float(document.get("time") or 0)))
        return {
            "launches": [
                {key: document.get(key) for key in ("launch", "name", "kind", "untouched", "call")}
                for document in launches[-MOST_RECORDED:]
            ],
            "failures": [
                {
                    **{
                        key: document.get(key)
                        for key in ("call", "status", "handled", "read", "signalled", "name", "line", "output", "time")
                    },
                    "words": shlex.join([str(document.get("name")), *map(str, document.get("argv") or ())])[
                        :LONGEST_LINE
                    ],
                    "within": (document.get("within") or {}).get("launch"),
                    "seconds": self._seconds_until(document),
                }
                for document in failures[:MOST_RECORDED]
            ],
        }

    def _seconds_until(self, failure: Dict[str, Any]) -> float:
        """From the start of the script to a failure; by the wall clock if that was on another node."""
        if failure.get("host") == os.uname().nodename:
            seconds = float(failure.get("monotonic") or 0) - self._began_at
        else:
            seconds = float(failure.get("time") or 0) - (time.time() - (time.monotonic() - self._began_at))
        return round(max(seconds, 0.0), 3)


MOST_RECORDED = 1000
LONGEST_LINE = 200


def read_launches(folder: Path) -> List[Dict[str, Any]]:
    """The documents of all launches, in the order of their start; of one that several ranks started, all."""
    found = _documents(folder)
    for rank in sorted(folder.glob("[0-9]*/**/rank-*")):
        found += _documents(rank)
    return sorted(found, key=lambda document: float(document.get("time") or 0))


def _documents(folder: Path) -> List[Dict[str, Any]]:
    known = (files.read_json(path) for path in sorted(folder.glob("*.json")))
    return [document for document in known if isinstance(document, dict)]


def link_log(work: Attempt, path: str) -> None:
    """Let `path`, where the user expects the script's output, be a link to the log, unless something else is there."""
    link, log = work.workdir / path, work.directory.attempt(work.number).script_log
    try:
        if link.is_symlink() and link.readlink().name == log.name:  # of an earlier attempt or run
            link.unlink()
        link.symlink_to(log)
    except OSError as error:
        because = os.strerror(error.errno or 0).lower()
        system.log(f"`{link}` does not lead to the script's output ({because}): see {log}")
