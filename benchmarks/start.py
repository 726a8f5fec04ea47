"""From the start of a job's script to the first line of user code, and to a first all-reduce, on 2 nodes x 2 ranks."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path

from measure import Figure, Timing, compared, environment, record
from world import World, world

# CLOCK_BOOTTIME is what /proc counts the starts of processes in.
WRITE = """
path = os.path.join(sys.argv[1], os.environ.get("RANK") or os.environ["SLURM_PROCID"])
open(path + ".part", "w").write(str(time.clock_gettime(time.CLOCK_BOOTTIME) if now is None else now))
os.rename(path + ".part", path)
"""
FIRST_LINE = "import time; now = time.clock_gettime(time.CLOCK_BOOTTIME)\nimport os, sys\n" + WRITE
ALL_REDUCE = (
    """\
import os, sys, time
import torch, torch.distributed as dist
if "RANK" not in os.environ:
    os.environ |= {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": "4"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
now = None
"""
    + WRITE
)
ROUNDS = 15
"""A rank that connects before rank 0 listens sleeps 250 to 750 ms in torch, with each contender.

So single times of an all-reduce lie half a second apart, and the median of a few is luck.
"""
TICKS = 100
SERRIED, BARE, TORCHRUN = "serried", "srun python", "srun torchrun"


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
    settle(here)
    for path in written:
        path.unlink()
    return last - started


def settle(here: World) -> None:
    """Let the job end, or end it: one `torchrun` of the two sometimes waits for the other for ever."""
    patience = time.monotonic() + 5
    while here.slurm.run("squeue", "--me", "--noheader").stdout.strip():
        if time.monotonic() > patience:
            here.cancel_all()
        time.sleep(0.1)


def contenders(here: World, program: str, out: Path) -> dict[str, list[str | Path]]:
    """Each starts four processes of one interpreter, which has torch beside it; only torchrun imports it."""
    words = f"{shlex.quote(str(here.project / program))} {shlex.quote(str(out))}"
    torchrun = f"{sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2 --rdzv-id=$SLURM_JOB_ID"
    torchrun += " --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29511"
    per_node = "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=2"
    sbatch = ["sbatch", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--output=/dev/null", "--wrap"]
    resources = ["--nodes", "2", "--ranks", "2", "--time", "2m", "--cluster", "slurm", "-y"]
    return {
        SERRIED: [here.bin / "serried", "submit", *resources, "--", sys.executable, program, out],
        BARE: [*sbatch, f"srun --cpus-per-task=1 --kill-on-bad-exit=1 {sys.executable} {words}"],
        TORCHRUN: [*sbatch, f"{per_node} {torchrun} {words}"],
    }


def race(here: World, program: str, rounds: int) -> dict[str, Timing]:
    taken: dict[str, list[float]] = {SERRIED: [], BARE: [], TORCHRUN: []}
    for turn in range(rounds + 1):
        out = here.folder / f"{program}-{turn}"
        out.mkdir()
        for name, argv in contenders(here, program, out).items():
            took = once(here, argv, out)
            print(f"{program} {turn:>2} {name:14} {took:.2f} s", flush=True)
            if turn:
                taken[name].append(took)
    return {name: Timing.of(each) for name, each in taken.items()}


def figures(what: str, timings: dict[str, Timing], bare: float) -> list[Figure]:
    """`bare` is the goal beside `srun python`."""
    ours = timings[SERRIED]
    limits = {BARE: bare, TORCHRUN: 0.70}
    return [
        compared(what, ours, f"`{peer}`", timings[peer], most=limit, goal=f"≤ {limit:.2f} of `{peer}`")
        for peer, limit in limits.items()
    ]


def main() -> None:
    with world(environment()) as here:
        (here.project / "first_line.py").write_text(FIRST_LINE)
        (here.project / "all_reduce.py").write_text(ALL_REDUCE)
        first = race(here, "first_line.py", ROUNDS)
        reduced = race(here, "all_reduce.py", ROUNDS)
    record(
        "Starting, 2 nodes x 2 ranks, snapshot included",
        figures("job start to the first line of user code", first, 2.0)
        + figures("job start to a finished all-reduce, `import torch` included", reduced, 1.1),
    )


if __name__ == "__main__":
    main()
