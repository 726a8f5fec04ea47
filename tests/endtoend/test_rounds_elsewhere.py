"""Ranks start again in containers, as a single process, and with commands beside them or a daemon of `setup`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import containing
from place import Place

ONCE = """
echo "from:${SERRIED_RESUME_FROM##*/}"
DO
[ "$SERRIED_RESUME_FROM" ] && exit
[ ${RANK:-0} = $((${WORLD_SIZE:-1} - 1)) ] || sleep 100
mkdir -p "$SERRIED_CHECKPOINT_DIR/step-1"
echo x >"$SERRIED_CHECKPOINT_DIR/step-1/x"
kill -9 $$
"""


def submit(place: Place, text: str, *flags: str, do: str = "") -> str:
    """An experiment `train` of which one rank is killed after its first checkpoint."""
    (place.project / "rank.sh").write_text(ONCE.replace("DO", do))
    (place.project / "serried.toml").write_text(text)
    return place.submit("train", *(flags or ("--ranks", "2")), "--set", "limit.rounds=3")


def recovered(place: Place, run: str, ranks: int = 2) -> None:
    status, end = place.wait(run)
    assert status == 0, place.serried("logs", run).stdout + place.serried("why", run).stdout
    assert re.fullmatch(rf".*; recovered once: rank {ranks - 1} on \S+ was killed by signal 9", end["message"])
    assert "from:step-1" in place.serried("logs", run, "--rank", "0").stdout.splitlines()


EXPERIMENT = '[experiments.train]\ncommand = "bash rank.sh"\n'


def test_a_single_process_starts_again(local: Place):
    recovered(local, submit(local, EXPERIMENT, "--set", "launch.kind=single"), 1)


@pytest.mark.parametrize("runtime", ["apptainer", "ch-run"])
def test_ranks_in_a_container_start_again_in_it(local: Place, tmp_path: Path, runtime: str):
    image = rootfs = containing.skeleton(tmp_path / "a root")
    if runtime == "apptainer":
        image = containing.build(rootfs, tmp_path / "image.sif", containing.path_with(runtime))
    settings = {"image": str(image), "runtime": runtime, "binds": containing.needed()}
    text = EXPERIMENT + containing.table("experiments.train.container", settings)
    place = local.with_environ(PATH=containing.path_with(runtime))
    run = submit(place, text, do=f"cat {containing.MARK}")
    recovered(place, run)
    assert place.serried("logs", run).stdout.count("inside") == 4


def test_commands_beside_the_ranks_start_again_with_them_and_a_daemon_of_setup_lives_on(local: Place):
    text = f"""{EXPERIMENT}
beside = ["echo watching; sleep 1000"]
environment.setup = ["(setsid sh -c 'echo $$ >daemon; exec sleep 1000' >/dev/null 2>&1 &)"]
"""
    run = submit(local, text, do="until kill -0 $(cat daemon); do sleep 0.1; done; echo the daemon lives")

    recovered(local, run)
    assert local.serried("logs", run, "--beside", "0").stdout == "watching\n" * 2
    assert local.serried("logs", run).stdout.count("the daemon lives") == 4


@pytest.mark.slurm
def test_a_node_where_ranks_failed_twice_is_excluded_by_the_job_that_continues(slurm: Place):
    program = """
echo "on $SLURMD_NODENAME from:${SERRIED_RESUME_FROM##*/}"
step=${SERRIED_RESUME_FROM##*-}
[ "$step" = 2 ] && exit
step=$((step + 1))
mkdir -p "$SERRIED_CHECKPOINT_DIR/step-$step"
echo x >"$SERRIED_CHECKPOINT_DIR/step-$step/x"
kill -9 $$
"""
    (slurm.project / "rank.sh").write_text(program)
    flags = ("--nodes", "1", "--ranks", "1", "--restarts", "1", "--set", "limit.rounds=5")
    run = slurm.submit(*flags, "--", "bash", "rank.sh")

    status, end = slurm.wait(run)
    logs = [slurm.serried("logs", run, "--attempt", number).stdout for number in ("1", "2")]
    assert (status, end["state"]) == (0, "COMPLETED"), slurm.serried("why", run).stdout
    (bad, first), (_, second), (good, third) = re.findall(r"(?m)^on (\S+) from:(\S*)$", "".join(logs))
    assert (first, second, third, bad == good) == ("", "step-1", "step-2", False)
