"""However a training ends, Serried says so: the right state, the right status, and never COMPLETED for a failure."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from place import Place, everywhere
from waiting import until

PYTHON = sys.executable


@dataclass(frozen=True)
class Shape:
    name: str
    command: tuple[str, ...]
    state: str
    exit_code: int
    cause: str | None
    flags: tuple[str, ...] = ()


def python(code: str) -> tuple[str, ...]:
    return (PYTHON, "-c", code)


def only_rank_1(code: str) -> tuple[str, ...]:
    """Rank 1 runs `code`; the others wait for longer than anybody sits through."""
    return python(f"import os, time\nif os.environ['RANK'] == '1':\n {code}\nelse: time.sleep(1000)")


RANK_0_LEAVES_RANK_1_HANGS = python("import os, time; os.environ['RANK'] == '1' and time.sleep(1000)")
QUICK = ("--set", "limit.grace=2s")

SHAPES = [
    Shape("success", python("print('hello')"), "COMPLETED", 0, None),
    Shape("exit-1", python("raise SystemExit(1)"), "FAILED", 1, "exit"),
    Shape("exit-2", python("raise SystemExit(2)"), "FAILED", 2, "exit"),
    Shape("exit-85-unasked", python("raise SystemExit(85)"), "FAILED", 85, "exit"),
    Shape("exit-137", python("raise SystemExit(137)"), "FAILED", 137, "exit"),
    Shape("exit-255", python("raise SystemExit(255)"), "FAILED", 255, "exit"),
    Shape("segv", python("import os; os.kill(os.getpid(), 11)"), "FAILED", 139, "signal"),
    Shape("kill", python("import os; os.kill(os.getpid(), 9)"), "FAILED", 137, "signal"),
    Shape("term", python("import os; os.kill(os.getpid(), 15)"), "FAILED", 143, "signal"),
    Shape("import-error-on-one-rank", only_rank_1("import no_such_module"), "FAILED", 1, "import-error"),
    # A word with braces may be a placeholder, which only a node fills.
    Shape("command-not-found", ("{no-such-program}",), "FAILED", 127, "command-not-found"),
    Shape(
        "silent-hang", RANK_0_LEAVES_RANK_1_HANGS, "FAILED", 1, "silence", ("--set", "limit.output_timeout=3s", *QUICK)
    ),
]


ON_CLUSTERS = ("success", "exit-85-unasked", "kill", "import-error-on-one-rank", "command-not-found", "silent-hang")
"""One for each cause."""


@everywhere("shape", {shape.name: shape for shape in SHAPES}, ON_CLUSTERS)
def test_each_ending_is_told_as_it_was(place, shape):
    run = place.submit("--ranks", "2", *shape.flags, "--", *shape.command)

    status, end = place.wait(run)

    assert (end["state"], end["exit_code"], end["cause"]) == (shape.state, shape.exit_code, shape.cause)
    assert status == (0 if shape.state == "COMPLETED" else 1)


def test_the_first_failing_rank_is_named_with_its_last_lines(place):
    run = place.submit("--ranks", "2", "--", *only_rank_1("print('so near'); raise SystemExit(7)"))

    place.wait(run)
    why = place.serried("why", run)

    assert "rank 1" in why.stdout
    assert "status 7" in why.stdout
    assert "so near" in why.stdout


def test_a_rank_that_ignores_term_is_killed_after_the_grace(place):
    code = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + only_rank_1("raise SystemExit(3)")[2]
    )
    run = place.submit("--ranks", "2", *QUICK, "--", *python(code))

    _, end = place.wait(run)

    assert (end["state"], end["exit_code"]) == ("FAILED", 3)


def test_a_program_that_daemonises_is_no_success_and_leaves_nothing_behind(place, wait_until, marked_processes):
    run = place.submit(*QUICK, "--", "bash", "-c", "(setsid nohup sleep 1000 >/dev/null 2>&1 &) ; exit 0")

    _, end = place.wait(run)

    assert (end["state"], end["cause"]) == ("FAILED", "left-running")
    wait_until(lambda: marked_processes(run) == [])


TORCHRUNS = f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --time=10
export PATH={Path(sys.executable).parent}:$PATH
export PORT=$(python -c 'import socket; held = socket.socket(); held.bind(("", 0)); print(held.getsockname()[1])')
srun --ntasks=2 --ntasks-per-node=1 bash -c '
    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id 7 --rdzv-endpoint 127.0.0.1:$PORT \\
        --rdzv-conf is_host=$((SLURM_NODEID == 0)) rank.py
' || echo "handled $?"
exit ${{1:-0}}
"""
ONE_FAILS = """import os, sys, time
print("rank", os.environ["RANK"], flush=True)
sys.exit(6) if os.environ["SLURM_NODEID"] == "1" else time.sleep(900)
"""


@pytest.mark.slurm
@pytest.mark.torch
def test_ranks_of_a_torchrun_do_not_wait_for_a_rank_that_failed_on_another_node(slurm: Place):
    (slurm.project / "rank.py").write_text(ONE_FAILS)
    (slurm.project / "train.sbatch").write_text(TORCHRUNS)
    run = slurm.submit("--set", "limit.grace=2s", "train.sbatch", "--", "3")
    code, end = slurm.wait(run)
    output = slurm.serried("logs", run).stdout
    assert (code, end["state"], end["exit_code"]) == (1, "FAILED", 3), output
    assert "handled 143\n" in output  # the script decides what follows
    timeline = [event["event"] for event in slurm.show(run)["timeline"]]
    assert any(what.startswith("ending launch 1: its other ranks cannot continue without rank ") for what in timeline)


def test_a_rank_that_others_wait_for_is_named_while_they_run_and_after_the_end(local: Place):
    (local.project / "train.sbatch").write_text(
        "#!/bin/bash\n#SBATCH -n2\nsrun bash -c 'echo begin; ((SLURM_PROCID)) || sleep 900; echo last words; exit 7'\n"
    )
    run = local.submit("--set", "limit.grace=1s", "train.sbatch")
    until(lambda: "rank-failed" in local.serried("ps").stdout)
    (warning,) = local.why(run)["warnings"]
    assert warning["code"] == "rank-failed"
    assert re.fullmatch(
        r"rank 1 of launch 1 on \S+ exited with status 7 \w+ ago, and other ranks of launch 1 still run",
        warning["message"],
    )
    assert local.serried("stop", "--yes", run).returncode == 0
    assert local.wait(run)[1]["state"] == "CANCELLED"
    why = local.why(run)
    assert (why["first_failure"]["rank"], why["tail"]) == (1, ["begin", "last words"])
