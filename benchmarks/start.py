"""From the start of job.sh to the first line of user code on the last of 2 nodes x 2 ranks."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path

from measure import Figure, Timing, environment, record
from world import World, world

# CLOCK_BOOTTIME is what /proc counts the starts of processes in.
FIRST_LINE = """\
import time; now = time.clock_gettime(time.CLOCK_BOOTTIME)
import os, sys
rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
path = os.path.join(sys.argv[1], rank)
open(path + ".part", "w").write(str(now))
os.rename(path + ".part", path)
"""
TICKS = 100
SERRIED, BARE, TORCHRUN = "serried", "srun python", "srun torchrun"
ROUNDS = 10


def batch_script_started(job: str, deadline: float) -> float:
    """When the shell that runs the job's script was started, in seconds since the machine was, to 10 ms."""
    wanted = re.compile(rf"job0*{job}/slurm_script".encode())
    while time.monotonic() < deadline:
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                if wanted.search((process / "cmdline").read_bytes()):
                    return int((process / "stat").read_text().rpartition(")")[2].split()[19]) / TICKS
            except OSError:
                continue
        time.sleep(0.005)
    raise SystemExit(f"job {job} did not start")


def once(here: World, argv: list[str | Path], out: Path) -> float:
    """Submit, wait until all four ranks have written their first line's time to `out`, and empty it again."""
    here.run(*argv)
    deadline = time.monotonic() + 60
    jobs = here.slurm.run("squeue", "--me", "--noheader", "--format=%i").stdout.split()
    started = batch_script_started(jobs[-1], deadline)
    while len(written := [path for path in out.iterdir() if path.suffix != ".part"]) < 4:
        if time.monotonic() > deadline:
            raise SystemExit(f"no first line within a minute of: {argv}")
        time.sleep(0.02)
    last = max(float(path.read_text()) for path in written)
    while here.slurm.run("squeue", "--me", "--noheader").stdout.strip():
        time.sleep(0.1)
    for path in written:
        path.unlink()
    return last - started


def contenders(here: World, out: Path) -> dict[str, list[str | Path]]:
    """Each starts four processes of one interpreter, which has torch beside it; only torchrun imports it."""
    program = f"{shlex.quote(str(here.project / 'first.py'))} {shlex.quote(str(out))}"
    torchrun = f"{sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2 --rdzv-id=$SLURM_JOB_ID"
    torchrun += " --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29511"
    per_node = "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=2"
    sbatch = ["sbatch", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--output=/dev/null", "--wrap"]
    resources = ["--nodes", "2", "--ranks", "2", "--time", "2m", "--cluster", "slurm", "-y"]
    return {
        SERRIED: [here.bin / "serried", "submit", *resources, "--", sys.executable, "first.py", out],
        BARE: [*sbatch, f"srun --cpus-per-task=1 --kill-on-bad-exit=1 {sys.executable} {program}"],
        TORCHRUN: [*sbatch, f"{per_node} {torchrun} {program}"],
    }


def main() -> None:
    taken: dict[str, list[float]] = {SERRIED: [], BARE: [], TORCHRUN: []}
    with world(environment()) as here:
        (here.project / "first.py").write_text(FIRST_LINE)
        for turn in range(ROUNDS + 1):
            out = here.folder / str(turn)
            out.mkdir()
            for name, argv in contenders(here, out).items():
                took = once(here, argv, out)
                print(f"{turn:>2} {name:14} {took:.2f} s", flush=True)
                if turn:
                    taken[name].append(took)
    ours, bare, torch = (Timing.of(taken[name]) for name in taken)
    record(
        "Starting",
        [
            Figure(
                "job start to the first line of user code, 2 nodes x 2 ranks, snapshot unpacked",
                str(ours),
                f"`srun python`: {bare}, Serried takes {ours.median / bare.median:.2f} of it",
                "≤ 1.10 of bare `srun python`",
                ours.median <= 1.10 * bare.median,
            ),
            Figure(
                "the same",
                str(ours),
                f"`srun torchrun`: {torch}, Serried takes {ours.median / torch.median:.2f} of it",
                "≤ 0.70 of `srun torchrun`",
                ours.median <= 0.70 * torch.median,
            ),
        ],
        {SERRIED: ours, BARE: bare, TORCHRUN: torch},
    )


if __name__ == "__main__":
    main()
