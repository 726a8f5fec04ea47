"""As much of srun as the agent needs, on one machine: N copies, FAKE_NODE in each, one bad exit ends the rest.

fake_launcher.py N [--no-kill] COMMAND…: with the option, the rest continues.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

KILL_WAIT = 60


def main(nodes: int, command: list[str]) -> int:
    ends_all = command[0] != "--no-kill"
    command = command if ends_all else command[1:]
    # Later steps have the environment of the job alone, as tasks of pbsdsh do.
    given = {name: value for name, value in os.environ.items() if "sweep" not in command or name[:8] != "SERRIED_"}
    tasks = [subprocess.Popen(command, env={**given, **own(node)}) for node in range(nodes)]
    told = 0.0
    while any(task.poll() is None for task in tasks):
        if ends_all and not told and any(task.poll() for task in tasks):
            told = time.monotonic()
            for task in tasks:
                task.terminate()
        if told and time.monotonic() - told > KILL_WAIT:
            for task in tasks:
                task.kill()
        time.sleep(0.02)
    return max(128 - task.returncode if task.returncode < 0 else task.returncode for task in tasks)


def own(node: int) -> dict[str, str]:
    return {"FAKE_NODE": str(node), "SLURMD_NODENAME": f"fake{node + 1}"}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
