"""Runs of wandb, which starts a process of its own, `wandb-core`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping

from serried.fs import files
from serried.protocol import tracking
from serried.protocol.tracking import Tracking
from serried.train.tracking.feed import Point, SessionEnd, Sink

START_SECONDS = 30
CORE = "wandb-core"


class Wandb(Sink):
    name = "wandb"

    def __init__(
        self, settings: Tracking, agents: Tracking, rank: int, config: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """`settings` are those of this rank; `agents` are those that the agent passed, before the script's changes."""
        self._settings = settings
        self._agents = agents
        self._rank = rank
        self._config = config
        self._options = dict(options)
        self._run: Any = None

    def start(self) -> None:
        if not os.environ.get("WANDB_MODE", "unset"):
            del os.environ["WANDB_MODE"]  # wandb fails on an empty mode
        mode = self._users_mode() or tracking.wandb_mode(self._settings.mode, os.environ)
        key = tracking.find_key(os.environ, Path.cwd())
        if mode == tracking.ONLINE and key is None:
            self._report("`WANDB_API_KEY` is not set, and no file has a key")
            mode = tracking.OFFLINE
        if key is not None and mode == tracking.ONLINE:
            os.environ[tracking.KEY] = key.value  # `wandb.login` would write it to a file
        import wandb

        try:
            self._run = wandb.init(**self._arguments(mode))
        except Exception as error:
            if mode != tracking.ONLINE:
                raise
            self._report(f"{type(error).__name__}: {error}")
            self.abandon()  # wandb-core takes the id for one in use
            with contextlib.suppress(Exception, SystemExit):  # its process has just been killed
                wandb.teardown()
            self._run = wandb.init(**self._arguments(tracking.OFFLINE))

    def _users_mode(self) -> str:
        """The mode in the environment, unless the script chose another one than the agent; empty for none.

        With `auto`, the agent has already found out whether the server answers.
        """
        mode = os.environ.get("WANDB_MODE", "")
        agents = self._agents
        if tracking.WANDB not in agents.sinks:
            return mode
        if mode == "disabled" and not agents.has_run(self._rank):
            return ""
        chosen = (tracking.ONLINE, tracking.OFFLINE) if agents.mode == tracking.AUTO else (agents.mode,)
        return "" if mode in chosen and self._settings.mode != agents.mode else mode

    def _is_users(self, variable: str) -> bool:
        """Whether a variable in the environment decides. One that the agent set gives way to the script's settings."""
        value = os.environ.get(variable)
        if not value:
            return False
        ranks = (self._rank, 0) if tracking.WANDB in self._agents.sinks else ()  # 0: a program that starts its ranks
        return all(value != tracking.wandb_variables(self._agents, rank, "").get(variable) for rank in ranks)

    def _arguments(self, mode: str) -> Dict[str, Any]:
        import wandb

        own = self._settings
        chosen = {"project": own.project, "group": own.group, "name": own.name, "id": own.id, "dir": own.folder}
        variables = {"group": "WANDB_RUN_GROUP", "id": "WANDB_RUN_ID"}
        arguments = {
            name: value
            for name, value in chosen.items()
            if value and not self._is_users(variables.get(name, f"WANDB_{name.upper()}"))
        }
        if "dir" in arguments:
            with contextlib.suppress(OSError):  # then wandb chooses a folder
                files.make_directory(Path(own.folder))
        # The ranks' output is in the run's logs. A hook in `sys.stdout` would raise when wandb-core is gone.
        quiet: Dict[str, Any] = {} if os.environ.get("WANDB_CONSOLE") else {"console": "off"}
        arguments["settings"] = wandb.Settings(init_timeout=START_SECONDS, **quiet)
        return {**arguments, "resume": "allow", "mode": mode, "config": dict(self._config), **self._options}

    def _report(self, reason: str) -> None:
        text = f"serried: the tracker `wandb` logs offline: {reason}; `serried track sync` uploads the run later\n"
        sys.stderr.write(text)
        sys.stderr.flush()

    def write(self, points: List[Point]) -> None:
        for _, step, values in points:
            self._run.log(values, step=step)

    def finish(self, ending: SessionEnd) -> None:
        if ending.will_continue and not os.environ.get("WANDB_SWEEP_ID"):  # the service would give it to another agent
            with contextlib.suppress(Exception):  # only changes how wandb shows the run
                self._run.mark_preempting()
        self._run.finish(exit_code=int(ending.has_failed))

    def abandon(self) -> None:
        """Kill wandb-core, and prevent that wandb waits for it at the exit of this process."""
        for pid in _children():
            with contextlib.suppress(OSError):
                if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == CORE:  # noqa: PTH115, PTH119 - strings
                    os.kill(pid, signal.SIGKILL)
        module = sys.modules.get("wandb")
        with contextlib.suppress(Exception):  # not public; without it wandb prints a traceback at the exit
            module.setup()._connection._cleanup()  # type: ignore[union-attr]  # noqa: SLF001


def _children() -> Iterator[int]:
    """The pids of this process's children. Each thread has a list of its own."""
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from map(int, path.read_text().split())
