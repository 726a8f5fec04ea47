"""One trial of a sweep at W&B's service: `python -m serried.train.tracking.wandb_agent ENTITY/PROJECT/ID`.

This runs `wandb agent --count 1` in its own process, and observes the trial that the agent starts. The agent exits
with 0 also if the trial failed, so this returns the trial's own status. A later attempt of the task starts the same
trial again without the agent, which would request another one.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Dict, Optional

from serried.base import files
from serried.schema import names, tracking
from serried.schema.layout import RunDirectory, TaskDirectory

OF_A_TRIAL = ("WANDB_ENTITY", "WANDB_PROJECT", "WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH")
"""Variables by which the agent identifies a trial to wandb in the program."""
PARAMETERS = OF_A_TRIAL[-1]
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The agent starts the trial in a process group of its own, so signals to this group do not reach the trial."""


def main() -> None:
    task = TaskDirectory(RunDirectory(Path(os.environ[names.RUN_DIR])).tasks / os.environ[names.TASK])
    # Where `[track]` has not set them. A trial that logs offline would report nothing to the service.
    defaults = {
        "WANDB_MODE": tracking.ONLINE,
        "WANDB_DIR": str(task.results / tracking.FOLDER),
        "WANDB_RUN_GROUP": os.environ[names.RUN_ID],
        "WANDB_RESUME": "allow",
    }
    os.environ.update({name: value for name, value in defaults.items() if not os.environ.get(name)})
    os.environ.pop(PARAMETERS, None)
    with contextlib.suppress(OSError):  # then wandb chooses a folder
        files.make_directory(Path(os.environ["WANDB_DIR"]), files.GROUP_DIRECTORY)
    sys.exit(_Agent(task.trial).run(sys.argv[1]))


class _Agent:
    def __init__(self, record: Path) -> None:
        self._record = record
        """The trial of this task, for later attempts and for `serried sweep show`."""
        self._trial: Optional[subprocess.Popen[bytes]] = None

    def run(self, sweep: str) -> int:
        """The status of the trial; that of the agent if the service has no trial left."""
        begun = files.read_json(self._record)
        for number in FORWARDED:
            signal.signal(number, self._forward)
        if begun:
            environment = {**os.environ, **begun["variables"]}
            print(f"serried: continues the trial {begun['variables']['WANDB_RUN_ID']}", flush=True)
            self._trial = subprocess.Popen(begun["command"], env=environment, stdin=subprocess.DEVNULL)
            return _status(self._trial.wait())
        status = self._run_agent(sweep)
        if self._trial is None:
            print(f"serried: the agent of W&B has started no trial of {sweep}", flush=True)
            return status
        return _status(self._trial.wait()) or status

    def _run_agent(self, sweep: str) -> int:
        agent = self
        usual = subprocess.Popen

        class Observed(usual):  # type: ignore[misc, valid-type]
            def __init__(self, args: Any, *others: Any, **options: Any) -> None:
                environment: Dict[str, str] = options.get("env") or {}
                is_trial = agent._trial is None and PARAMETERS in environment  # later ones are wandb's own processes
                if is_trial:
                    import yaml  # a dependency of wandb

                    text = Path(environment[PARAMETERS]).read_text(encoding="utf-8")
                    items = yaml.safe_load(text).items()
                    drawn = {name: item["value"] for name, item in items if isinstance(item, dict)}
                    variables = {name: environment[name] for name in OF_A_TRIAL if name in environment}
                    record = {"parameters": drawn, "command": list(args), "variables": variables}
                    files.write_json(agent._record, record)
                super().__init__(args, *others, **options)
                if is_trial:
                    agent._trial = self

        subprocess.Popen = Observed  # type: ignore[misc]
        sys.argv = ["wandb", "agent", "--count", "1", sweep]
        try:
            runpy.run_module("wandb", run_name="__main__")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            subprocess.Popen = usual  # type: ignore[misc]
        return 0

    def _forward(self, number: int, _: Optional[FrameType]) -> None:
        if self._trial is not None:
            with contextlib.suppress(OSError):
                self._trial.send_signal(number)
        elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _status(returned: int) -> int:
    """A trial that a signal killed exits as in a shell."""
    return returned if returned >= 0 else 128 - returned


if __name__ == "__main__":
    main()
