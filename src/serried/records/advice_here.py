"""What to do about an end of `serried run`, where that differs from a job's: part of `advice`."""

from __future__ import annotations

from collections.abc import Mapping

from serried.protocol.reasons import Reason
from serried.records.advice_on_jobs import Advice

HERE: Mapping[Reason, Advice] = {
    Reason.EXIT: Advice(
        "the program itself ended with an error", ("read all that the rank wrote: serried logs {run} --rank {rank}",)
    ),
    Reason.KILLED: Advice(
        "signal 9 (SIGKILL) ended the rank: almost always because this machine ran out of memory",
        (
            "look at the memory that is left while it runs: free -h",
            "use fewer ranks or data loading workers: each holds its own copy of what it loads",
            "read what it wrote before: serried logs {run} --rank {rank}",
        ),
    ),
    Reason.OUT_OF_MEMORY: Advice(
        "it needed more main memory (not GPU memory) than this machine had left",
        (
            "look at the memory that is left while it runs: free -h",
            "use fewer ranks or data loading workers: each holds its own copy of what it loads",
        ),
    ),
    Reason.IMPORT_ERROR: Advice(
        "Python did not find a module in the environment of the ranks",
        (
            "install the module, or activate the environment that has it",
            "or name the environment in `environment.venv` or `environment.conda`: see docs/environments.md",
        ),
    ),
    Reason.FILE_MISSING: Advice(
        "a file that the program wanted is not there",
        ("relative paths begin in the folder where ranks start: see `source` in serried show {run}, and `workdir`",),
    ),
}
