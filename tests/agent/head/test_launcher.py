"""The words of the launcher that starts nodes."""

from __future__ import annotations

import signal
import sys

from serried.agent.head.launcher import Launcher
from serried.agent.loop import Loop


def test_what_a_launcher_announces_is_kept_though_it_says_more_afterwards():
    said = ["slurmstepd: error: *** STEP 5.0 CANCELLED DUE TO JOB REQUEUE ***", *(f"srun: {n}" for n in range(20))]
    program = [sys.executable, "-c", f"import sys; sys.stderr.write({chr(10).join(said)!r})"]
    ended = []
    loop = Loop()
    launcher = Launcher(loop, program, {}, lambda status: (ended.append(status), loop.stop()))
    loop.on_signal(signal.SIGCHLD, launcher.reap)
    launcher.start()
    loop.run()
    assert (ended, launcher.last_lines) == ([0], [said[0], *said[-5:]])
