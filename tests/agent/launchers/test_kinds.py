"""The command, environment and files of each kind of launcher, and the identity and environment of its ranks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from building import a_plan
from serried.agent.attempt import Attempt
from serried.agent.launchers import kinds
from serried.agent.launchers.kinds import LaunchContext
from serried.agent.ranks.command import RankPlace
from serried.schema import launchers
from serried.schema.layout import RunDirectory
from serried.schema.plan import Environment, Launch

RANK = ("/usr/bin/python3", "-I", "-S", "/run/agent.pyz", "rank", "@af09")
REMOTE = ("/usr/bin/python 3", "-I", "-S", "/run/agent.pyz", "remote", "@af09")


@pytest.fixture
def scene(tmp_path: Path):
    def make(
        *command: str, nodes: int = 2, ranks: int = 4, node: int = 0, options: tuple[str, ...] = (), **env: str
    ) -> LaunchContext:
        plan = a_plan(nodes=nodes, ranks=ranks, command=command or ("python", "train.py"))._replace(
            launch=Launch("?", options=options), environment=Environment(env=env)
        )
        work = Attempt(RunDirectory(Path("/run")), plan, None, 1)
        hosts = [f"gpu{number}" for number in range(1, nodes + 1)]
        return LaunchContext(work, node, hosts, "10.0.0.1", f"10.0.0.{node + 1}", 20123, RANK, tmp_path, REMOTE)

    return make


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def test_mpirun_starts_all_ranks_once_and_options_know_how_large_the_run_is(scene):
    options = ("--ppn", "{ranks}", "--map-by=ppr:{local_world_size}:node", "{nodes}x{gpus}", "%h.{other}")
    filled = ["--ppn", "4", "--map-by=ppr:4:node", "2x0", "%h.{other}"]
    assert kinds.mpirun(scene(options=options)).argv == ["mpirun", "-n", "8", *filled, *RANK]
    assert {"PMI_*", "PMIX_*", "OMPI_COMM_WORLD_*"} < set(kinds.mpirun(scene()).without)


def test_where_there_is_only_an_mpiexec_it_is_taken(scene, tmp_path, monkeypatch):
    (tmp_path / "mpiexec").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kinds.mpirun(scene()).argv[0] == "mpiexec"


def test_every_dialect_of_mpi_is_led_to_the_hosts_and_to_our_remote_shell(scene, tmp_path):
    assert kinds.mpirun(scene()).environment == {
        "TMPDIR": f"{tmp_path}/launcher",
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": f"/bin/sh {tmp_path}/bin/ssh",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_plm_rsh_num_concurrent": "128",
        "OMPI_MCA_orte_leave_session_attached": "1",
        "OMPI_MCA_odls_base_sigkill_timeout": "25",
        "OMPI_MCA_ras": "^slurm,tm,gridengine,lsf,loadleveler,alps",
        "OMPI_MCA_orte_default_hostfile": f"{tmp_path}/slots",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": f"/bin/sh {tmp_path}/bin/ssh",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_num_concurrent": "128",
        "PRTE_MCA_prte_leave_session_attached": "1",
        "PRTE_MCA_ras": "^slurm,pbs,tm,gridengine,lsf,flux",
        "PRTE_MCA_prte_default_hostfile": f"{tmp_path}/slots",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": f"{tmp_path}/bin/ssh",
        "HYDRA_RMK": "user",
        "HYDRA_HOST_FILE": f"{tmp_path}/machines",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": f"{tmp_path}/bin/ssh",
        "I_MPI_HYDRA_RMK": "user",
        "I_MPI_HYDRA_HOST_FILE": f"{tmp_path}/machines",
        "I_MPI_PIN": "0",
    }
    assert (tmp_path / "slots").read_text() == "gpu1 slots=4\ngpu2 slots=4\n"
    assert (tmp_path / "machines").read_text() == "gpu1:4\ngpu2:4\n"
    assert (tmp_path / "bin" / "ssh").read_text() == (
        "#!/bin/sh\nexec '/usr/bin/python 3' -I -S /run/agent.pyz remote @af09 \"$@\"\n"
    )


def test_horovodrun_gets_a_list_of_hosts_and_slots(scene):
    argv = ["--disable-cache", "-np", "8", "-H", "gpu1:4,gpu2:4", "--gloo", *RANK]
    assert kinds.horovodrun(scene(options=("--gloo",))).argv == ["python", "-m", "horovod.runner.launch", *argv]
    assert kinds.horovodrun(scene("./train", options=("--gloo",))).argv == ["horovodrun", *argv]


def test_what_horovodrun_would_show_to_everybody_it_does_not_get(scene, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "of the user")
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "90")
    context = scene(TOKEN="of the plan", HOROVOD_CYCLE_TIME="2", LD_LIBRARY_PATH="/opt/cuda/lib64")
    start = kinds.horovodrun(context)
    of_mpi = ("OMPI", "PRTE", "HYDRA", "I_MPI")
    assert {name: value for name, value in start.environment.items() if not name.startswith(of_mpi)} == {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "TMPDIR": f"{tmp_path}/launcher",
        "LD_LIBRARY_PATH": "/opt/cuda/lib64",
        "HOROVOD_START_TIMEOUT": "90",
        "HOROVOD_CYCLE_TIME": "2",
    }
    place = {"master": "10.0.0.1", "port": 4242, "deadline": 0.0, "stop_file": "/t/stop"}
    rank = RankPlace(node=0, rank=0, local_rank=0, threads=1, **place)
    work = Attempt(RunDirectory(tmp_path / "run"), context.attempt.plan, None, 1)
    assert kinds.launcher_environment(work, rank, start) == start.environment


def test_the_remote_shell_hands_its_words_on_as_they_are(scene):
    prints = ["/bin/sh", "-c", 'printf "<%s>" "$@"', "it's"]
    shell = kinds.remote_shell(scene()._replace(remote=prints))
    told = subprocess.run([shell, "-x", "gpu2", "echo $HOME; exit 3", "ü"], capture_output=True, text=True, check=True)
    assert told.stdout == "<-x><gpu2><echo $HOME; exit 3><ü>"


@pytest.fixture
def work(tmp_path, monkeypatch):
    for name, value in {"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "2,3", "SLURMD_NODENAME": "n2"}.items():
        monkeypatch.setenv(name, value)

    def make(kind, **shape):
        return Attempt(RunDirectory(tmp_path), a_plan("r1", **shape)._replace(launch=Launch(kind)), None, 1)

    return make


def test_a_launcher_on_another_node_does_not_say_which_gpus_this_one_has(work):
    of_the_first = {"SERRIED_MARK": "r1/-/1", "CUDA_VISIBLE_DEVICES": "0,1", "SLURMD_NODENAME": "n1", "PMI_RANK": "2"}
    told = {"SERRIED_MARK": "r1/-/1", "PMI_RANK": "2", "CUDA_VISIBLE_DEVICES": "2,3", "SLURMD_NODENAME": "n2"}
    assert kinds.rank_environment(work("mpirun"), of_the_first) == told


def test_a_step_of_slurms_knows_its_gpus_by_itself(work):
    own = {"SERRIED_MARK": "r1/-/1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert kinds.rank_environment(work("srun"), own) == own


def test_a_launcher_that_hands_nothing_down_adds_to_what_the_agent_has(work):
    handed = kinds.rank_environment(work("horovodrun"), {"PATH": "/tmp/ssh:/usr/bin", "HOROVOD_RANK": "1", "LANG": "C"})
    handed.pop("PYTEST_CURRENT_TEST")
    assert handed == {"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "2,3", "SLURMD_NODENAME": "n2", "HOROVOD_RANK": "1"}


def test_the_only_rank_of_all_needs_nobody_to_say_so():
    assert kinds.read((launchers.TORCHRUN,), {}, 1) == kinds.RankIdentity(0, 1, 0, 0)
    assert kinds.read((launchers.TORCHRUN,), {}, 2) is None


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "4"}, "rank 0 of 4, and the plan has 2"),
        ({}, "a rank without a number: SLURM_PROCID is not set"),
    ],
)
def test_a_rank_that_is_not_in_the_plan_is_refused(work, environ, problem):
    with pytest.raises(ValueError, match=f"`srun` has started {problem}"):
        kinds.identify(work("srun", nodes=1, ranks=2), (launchers.SLURM,), environ, {})
