"""From a shell to a submitted job, against a process that does the same with submitit; and an array of 1,000."""

from __future__ import annotations

import shutil
from pathlib import Path

from measure import Figure, alternate, compared, environment, record, seconds
from world import World, world

MOST = 0.6
JOB = ["--nodes", "1", "--ranks", "1", "--time", "1m", "--cluster", "slurm", "-y"]

SUBMITIT = """
import submitit

def train(number=0):
    print("training")

executor = submitit.AutoExecutor(folder="{folder}")
executor.update_parameters(timeout_min=1, cpus_per_task=1, nodes=1)
{what}
"""
ONE = "print(executor.submit(train).job_id)"
# What submitit offers for the same purpose; it copies with rsync.
WITH_SNAPSHOT = f"""from pathlib import Path
from submitit.helpers import RsyncSnapshot
with RsyncSnapshot(Path("{{folder}}-snapshot-{{number}}"), root_dir=Path.cwd()):
    {ONE}"""
ARRAY = "executor.update_parameters(slurm_array_parallelism=8)\nprint(len(executor.map_array(train, range(1000))))"


def submitit(here: World, what: str, number: int = 0) -> list[str | Path]:
    folder = here.folder / "home" / "submitit"
    program = SUBMITIT.format(folder=folder, what=what.format(folder=folder, number=number))
    return [here.bin / "python", "-c", program]


def one_job(here: World) -> list[Figure]:
    number = iter(range(1000))
    serried = [here.bin / "serried", "submit", *JOB, "--", "python", "train.py"]
    in_place = [here.bin / "serried", "submit", *JOB, "--in-place", "--", "python", "train.py"]
    timings = alternate(
        {
            "serried": lambda: seconds(serried, env=here.env, cwd=here.project),
            "serried in place": lambda: seconds(in_place, env=here.env, cwd=here.project),
            "submitit": lambda: seconds(submitit(here, ONE), env=here.env, cwd=here.project),
            "submitit, RsyncSnapshot": lambda: seconds(
                submitit(here, WITH_SNAPSHOT, next(number)), env=here.env, cwd=here.project
            ),
        },
        rounds=15,
    )
    here.cancel_all()
    pairs = [
        ("`serried submit` of one job, snapshot of 40 files included", "serried", "submitit, RsyncSnapshot"),
        ("`serried submit --in-place` of one job", "serried in place", "submitit"),
    ]
    goal = f"≤ {MOST:.2f} of a process that does the same with submitit"
    return [compared(what, timings[ours], peer, timings[peer], most=MOST, goal=goal) for what, ours, peer in pairs]


def array(here: World) -> list[Figure]:
    # MaxArraySize is 1001 by default: indices to 1000.
    serried = [here.bin / "serried", "submit", *JOB, "--array", "0-999", "--parallel", "8", "--", "python", "train.py"]
    before = here.files()
    calls = here.counted(*serried)
    ours = here.files() - before
    before = here.files()
    theirs_calls = here.counted(*submitit(here, ARRAY))
    theirs = here.files() - before
    timings = alternate(
        {
            "serried submit --array 0-999": lambda: seconds(serried, env=here.env, cwd=here.project),
            "submitit map_array of 1000": lambda: seconds(submitit(here, ARRAY), env=here.env, cwd=here.project),
        },
        rounds=5,
    )
    here.cancel_all()
    return [
        Figure(
            "an array of 1,000: calls of `sbatch`",
            str(calls.count("sbatch")),
            f"submitit `map_array`: {theirs_calls.count('sbatch')}",
            "1",
            calls.count("sbatch") == 1,
        ),
        Figure(
            "an array of 1,000: files before the jobs start, run directory and record together",
            str(ours),
            f"submitit: {theirs:,}",
            "≤ 5 in the run directory",
            in_run_directory(here) <= 5,
        ),
        Figure(
            "an array of 1,000: time",
            str(timings["serried submit --array 0-999"]),
            f"submitit: {timings['submitit map_array of 1000']}",
            "",
            True,
        ),
    ]


def in_run_directory(here: World) -> int:
    """Files in the run directory of the newest run."""
    newest = max((here.folder / "home").rglob("job.sh"), key=lambda path: path.stat().st_mtime)
    return sum(1 for path in newest.parent.rglob("*") if path.is_file())


def main() -> None:
    if not shutil.which("rsync"):
        raise SystemExit("error: submitit's snapshot needs rsync\n\nhint: apt-get install rsync")
    with world(environment()) as here:
        here.hold()
        figures = one_job(here) + array(here)
    record("Submitting", figures)


if __name__ == "__main__":
    main()
