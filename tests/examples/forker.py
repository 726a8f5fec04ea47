"""Runs scripts as ranks: real processes, gloo on the loopback, forked from one that has imported torch already.

Reads a job as a line of JSON, `{"script", "arguments", "environments"}`, and answers `[{"status", "output"}]`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path

SECONDS = 120
PRELOADED = (
    "torch.nn.parallel",
    "torch.utils.data",
    "torch.distributed",
    "sklearn.datasets",
    "sklearn.model_selection",
)


def run(job):
    """How each rank ended, and what it wrote."""
    with contextlib.ExitStack() as open_files:
        outputs = [open_files.enter_context(tempfile.TemporaryFile()) for _ in job["environments"]]
        ranks = [
            start(job["script"], job["arguments"], environment, output)
            for environment, output in zip(job["environments"], outputs, strict=True)
        ]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        for output in outputs:
            output.seek(0)
        written = [output.read().decode(errors="replace") for output in outputs]
    return [{"status": status, "output": text} for status, text in zip(statuses, written, strict=True)]


def start(script, arguments, environment, output):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.alarm(SECONDS)  # a hang is a failure, and names itself: -14
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.environ.update(environment)
        os.chdir(Path(script).parent)
        sys.argv = [script, *arguments]
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - this is where a script ends, whatever it raises
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for module in PRELOADED:
        importlib.import_module(module)
    with contextlib.suppress(ImportError):
        importlib.import_module("lightning")
    for line in sys.stdin:
        answer = json.dumps(run(json.loads(line)))
        print(answer, flush=True)
