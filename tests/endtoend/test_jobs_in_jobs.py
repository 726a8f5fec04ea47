"""Jobs among others: what a run starts has the environment of its user, and names mean what they say."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from place import Place
from waiting import until

OF_A_RUN = ("SERRIED_", "BASH_ENV", "PYTHON", "WANDB_", "RANK", "WORLD_SIZE", "TORCHELASTIC_", "exp_name")
TO_FILE = "#!/bin/bash\n#SBATCH -n 1 -t 5\nenv -0 >$1\n"
OUTER = """#!/bin/bash
#SBATCH -n 1 -t 10
export MINE=1
sbatch --wait -o /dev/null plain.sh sbatch
{real} --wait -o /dev/null plain.sh path
{serried} run --cluster local plain.sh -- run
{serried} run --cluster local -- {serried} run --cluster local plain.sh -- runs
{serried} run --cluster local -- {python} -c 'import sys; print("one program", sys.gettrace())'
"""


def variables(path: Path) -> dict[str, str]:
    known = dict(text.split("=", 1) for text in path.read_text().split("\0") if text)
    return {name: value for name, value in known.items() if name == "PATH" or name.startswith(OF_A_RUN)}


@pytest.mark.slurm
def test_nothing_of_a_run_reaches_jobs_and_runs_that_its_script_starts(slurm: Place):
    real = shutil.which("sbatch", path=slurm.environ["PATH"])
    serried = f"{sys.executable} -m serried"
    (slurm.project / "plain.sh").write_text(TO_FILE)
    (slurm.project / "outer.sh").write_text(OUTER.format(real=real, serried=serried, python=sys.executable))
    run = slurm.submit("outer.sh")
    code, end = slurm.wait(run)
    log = slurm.serried("logs", run).stdout
    assert (code, end["state"]) == (0, "COMPLETED"), log
    assert "Recursion" not in log
    assert "one program None" in log
    wanted = ("PATH", *OF_A_RUN[1:])  # settings of the submitting shell do not reach its jobs
    as_outside = {name: value for name, value in slurm.environ.items() if name.startswith(wanted)}
    assert variables(slurm.project / "sbatch") == as_outside
    assert variables(slurm.project / "path") == as_outside
    for nested in ("run", "runs"):
        inner = variables(slurm.project / nested)
        assert end["id"] not in inner["SERRIED_RUN_DIR"]
        assert [name for name in inner if end["directory"] in inner[name]] == []
        assert {"RANK", "WORLD_SIZE", "exp_name", "SERRIED_USER_BASH_ENV"}.isdisjoint(inner)


@pytest.mark.slurm
@pytest.mark.parametrize("kind", ["agent", "torchrun"])
def test_nothing_of_a_run_reaches_jobs_that_its_ranks_submit(slurm: Place, kind: str):
    (slurm.project / "plain.sh").write_text(TO_FILE)
    words = 'export MINE=1; sbatch --wait -o /dev/null plain.sh "$PWD.$SLURM_PROCID"'
    size = ("--nodes", "2", "--ranks", "2", "--cpus", "1", "--launch", kind)
    run = slurm.submit(*size, "--in-place", "--", "/bin/bash", "-c", words)
    assert slurm.wait(run)[0] == 0, slurm.why(run)
    for rank in range(4):
        path = slurm.project.with_name(f"{slurm.project.name}.{rank}")
        found = dict(text.split("=", 1) for text in path.read_text().split("\0") if text)
        assert found["MINE"] == "1"
        assert run not in str(found)
        of_a_run = (*OF_A_RUN, "SLURM_STEP", "MASTER_", "OMP_")
        assert [name for name in found if name.startswith(of_a_run) and name not in slurm.environ] == []


@pytest.mark.slurm
def test_a_singleton_waits_for_the_job_of_the_same_name_before_it(slurm: Place):
    (slurm.project / "train.sh").write_text(
        "#!/bin/bash\n#SBATCH -n 1 -t 5 --dependency=singleton -o %x.out\n"
        "echo $SLURM_JOB_NAME begins >>log; until [ -e go ]; do sleep 0.1; done; echo ends >>log\n"
    )
    first, second, other = (slurm.submit("--name", name, "train.sh") for name in ("a b", "a b", "c"))
    until(lambda: "Dependency" in str(slurm.show(second)))
    until(lambda: "c begins" in (slurm.project / "log").read_text())
    assert slurm.show(first)["name"] == "a b"
    (slurm.project / "go").touch()
    for run in (first, second, other):
        assert slurm.wait(run)[0] == 0
    assert (slurm.project / "log").read_text().split("ends\n").count("a b begins\n") >= 1
    assert {path.name for path in slurm.project.glob("*.out")} == {"a b.out", "c.out"}


@pytest.mark.slurm
def test_a_script_that_submits_itself_and_ends_leaves_its_next_job_alone(slurm: Place):
    text = (
        "#!/bin/bash\n"
        '[ "$1" = next ] && { sleep 8; srun echo next has ended; exit; }\n'
        'sbatch --parsable --nodelist="$SLURMD_NODENAME" -t1 -o next.out "$0" next\nsleep 2\n'
    )
    (slurm.project / "again.sh").write_text(text)
    run = slurm.submit("again.sh")
    assert slurm.wait(run)[0] == 0, slurm.why(run)
    job = slurm.serried("logs", run).stdout.strip()
    until(lambda: slurm.has_left_queue(job))
    assert (slurm.project / "next.out").read_text() == "next has ended\n"
