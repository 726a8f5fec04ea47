"""Who a process is, from environments as launchers really make them."""

from __future__ import annotations

import socket

import pytest

from serried.schema.names import elastic_id
from serried.train.errors import IdentityError
from serried.train.identities import Identity, identity, tasks_per_node
from tables import for_each


def variables(text):
    return dict(word.split("=", 1) for word in text.split())


AGENT = variables(
    f"SERRIED_MARK=k3f9q2/-/1 SERRIED_RUN_ID=k3f9q2 SERRIED_ATTEMPT=1 TORCHELASTIC_RUN_ID={elastic_id('k3f9q2')} "
    "TORCHELASTIC_RESTART_COUNT=0 RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 NODE_RANK=1 "
    "MASTER_ADDR=10.0.0.1 MASTER_PORT=41234"
)
TORCHRUN = variables(
    "TORCHELASTIC_RUN_ID=2f1d4a0c-8f0e-4f8e-9d0e-1f8f6f0f3b1a TORCHELASTIC_RESTART_COUNT=0 "
    "TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_USE_AGENT_STORE=True GROUP_RANK=1 GROUP_WORLD_SIZE=2 ROLE_RANK=3 "
    "ROLE_WORLD_SIZE=4 RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29500 "
    "OMP_NUM_THREADS=1"
)
HOROVOD = variables(
    "HOROVOD_RANK=3 HOROVOD_SIZE=4 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2 HOROVOD_CROSS_RANK=1 HOROVOD_CROSS_SIZE=2 "
    "HOROVOD_HOSTNAME=n2 HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1 HOROVOD_GLOO_RENDEZVOUS_PORT=51234 "
    "HOROVOD_CONTROLLER=gloo"
)
OPEN_MPI = variables(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
    "OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=3 PMIX_NAMESPACE=1725366273"
)
INTEL_MPI = variables("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=9")
PALS = variables(
    "PALS_RANKID=5 PMI_SIZE=8 PMI_RANK=5 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=4 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=4 "
    "PALS_NODEID=1 PALS_APID=6b2e"
)
MVAPICH = variables(
    "MV2_COMM_WORLD_RANK=3 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2"
)
BATCH_SHELL = variables(
    "SLURM_CPUS_ON_NODE=2 SLURM_GPUS_PER_NODE=v100:4 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-3] SLURM_JOB_NUM_NODES=3 "
    "SLURM_LOCALID=0 SLURM_NNODES=3 SLURM_NODEID=0 SLURM_NTASKS=5 SLURM_NTASKS_PER_NODE=2 SLURM_PROCID=0 "
    "SLURM_SUBMIT_DIR=/home/ada SLURM_TASKS_PER_NODE=2(x2),1"
)
STEP = BATCH_SHELL | variables(
    "SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_PROCID=3 SLURM_SRUN_COMM_HOST=127.0.0.1 "
    "SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_LAUNCHER_PORT=44953 SLURM_STEP_NODELIST=n[1-3] SLURM_STEP_NUM_NODES=3 "
    "SLURM_STEP_NUM_TASKS=5 SLURM_STEP_TASKS_PER_NODE=2(x2),1 SLURM_TOPOLOGY_ADDR=n2"
)
PER_NODE_STEP = STEP | variables(
    "SLURM_LOCALID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=1(x2)"
)
PMI2_STEP = PER_NODE_STEP | variables("PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=1.1 PMI_FD=11")
SHELL_STEP = STEP | variables(
    "SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1"
)
FLUX = variables("FLUX_JOB_ID=ƒ2x9 FLUX_TASK_RANK=3 FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=2")
JSRUN = variables(
    "LSB_JOBID=88 JSM_NAMESPACE_RANK=3 JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=2"
)
GENERIC = variables("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29500")
ONE_RANK_OF_OURS = AGENT | variables("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1")
LAST_OF_STEP = STEP | variables("SLURM_PROCID=4 SLURM_LOCALID=0 SLURM_NODEID=2")
FOURTH, SIXTH, ALONE = (3, 4, 1, 2, 1), (5, 8, 1, 4, 1), (0, 1, 0, 1, 0)


def place(who: Identity):
    return who.rank, who.world_size, who.local_rank, who.local_world_size, who.node_rank


@for_each(
    "launcher, environ, source, expected",
    [
        ("our agent", AGENT, "serried", SIXTH),
        ("our agent in a step of one task on each node", {**PER_NODE_STEP, **AGENT}, "serried", SIXTH),
        ("torchrun", TORCHRUN, "torchrun", FOURTH),
        ("torchrun without a run id", {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "torchrun", FOURTH),
        ("torchrun once on each node of a step", {**PER_NODE_STEP, **TORCHRUN}, "torchrun", FOURTH),
        ("torchrun as a rank of ours", {**AGENT, **TORCHRUN}, "torchrun", FOURTH),
        ("horovodrun", HOROVOD, "horovod", FOURTH),
        ("horovodrun in an interactive step", {**HOROVOD, **SHELL_STEP}, "horovod", FOURTH),
        ("Open MPI", OPEN_MPI, "open-mpi", FOURTH),
        ("Open MPI, its daemons in a step", {**OPEN_MPI, **PER_NODE_STEP}, "open-mpi", FOURTH),
        ("Open MPI as a rank of ours", {**OPEN_MPI, **ONE_RANK_OF_OURS}, "open-mpi", FOURTH),
        ("Open MPI with RANK exported", {**OPEN_MPI, "RANK": "3", "WORLD_SIZE": "4"}, "open-mpi", FOURTH),
        ("Intel MPI", INTEL_MPI, "pmi", FOURTH),
        ("PALS", PALS, "pmi", SIXTH),
        ("MVAPICH2", MVAPICH, "mvapich", FOURTH),
        ("Slurm step", STEP, "slurm", (3, 5, 1, 2, 1)),
        ("Slurm step, the smaller node", LAST_OF_STEP, "slurm", (4, 5, 0, 1, 2)),
        ("Slurm step with PMI-2, which knows no local rank", PMI2_STEP, "slurm", (1, 2, 0, 1, 1)),
        ("srun --pty bash", SHELL_STEP, "slurm", ALONE),
        ("ranks started by hand within srun --pty bash", {**GENERIC, **SHELL_STEP}, "generic", FOURTH),
        ("Flux", FLUX, "flux", FOURTH),
        ("jsrun", JSRUN, "jsrun", FOURTH),
        ("RANK and its kin", GENERIC, "generic", FOURTH),
        ("nothing", {}, "local", ALONE),
        ("empty variables", {"RANK": "", "WORLD_SIZE": ""}, "local", ALONE),
        ("Slurm batch shell", BATCH_SHELL, "local", ALONE),
        ("PBS job", {"PBS_NODEFILE": "/gone", "PBS_TASKNUM": "1"}, "local", ALONE),
    ],
)
def test_each_launcher_is_understood(launcher, environ, source, expected):
    who = identity(environ)
    assert (launcher, who.source, place(who)) == (launcher, source, expected)


@for_each(
    "environ, message",
    [
        (
            {**STEP, "RANK": "0", "WORLD_SIZE": "1"},  # a stale RANK from the login shell
            "a Slurm step sets `SLURM_PROCID=3`, but the environment sets `RANK=0`",
        ),
        (
            {**STEP, **GENERIC, "LOCAL_RANK": "0"},
            "a Slurm step sets `SLURM_STEP_NUM_TASKS=5`, but the environment sets `WORLD_SIZE=4`",
        ),
        (
            {**STEP, **TORCHRUN},  # in each of several tasks
            (
                "torchrun sets `WORLD_SIZE=4`, but a Slurm step sets `SLURM_STEP_NUM_TASKS=5`\n"
                "hint: start torchrun once on each node: `srun --ntasks-per-node=1`"
            ),
        ),
        ({**OPEN_MPI, **AGENT}, "Serried's agent sets `RANK=5`, but Open MPI sets `OMPI_COMM_WORLD_RANK=3`"),
        ({**GENERIC, "RANK": "4"}, "`RANK=4`, but `WORLD_SIZE=4`"),
        ({**GENERIC, "RANK": "three"}, "`RANK=three` is not a number"),
        ({"RANK": "1"}, "`RANK=1` without `WORLD_SIZE` and `MASTER_ADDR`"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "`RANK=0` and `WORLD_SIZE=2` without `MASTER_ADDR`"),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2"},
            "MPICH or Intel MPI started this process, but does not set `MPI_LOCALRANKID` or `PMI_LOCAL_RANK`",
        ),
        (
            {**FLUX, "FLUX_JOB_SIZE": "5"},  # uneven nodes
            "Flux started this process, but does not set the number of its ranks on this node\nhint: ",
        ),
        ({**STEP, "SLURM_NODEID": "3"}, "`SLURM_NODEID=3`, but `SLURM_STEP_TASKS_PER_NODE=2(x2),1`"),
    ],
)
def test_contradictions_are_refused_by_name(environ, message):
    with pytest.raises(IdentityError) as raised:
        identity(environ)
    assert str(raised.value).startswith(message)


def test_a_node_has_its_name_in_slurm_else_its_host_name():
    named = {"SLURMD_NODENAME": "n7"}
    names = [identity({**environ, **named}).node_name for environ in (STEP, AGENT, OPEN_MPI, {})]
    host = socket.gethostname()
    assert [*names, identity(AGENT).node_name] == ["n7", "n7", host, host, host]


def test_explain_shows_what_was_read():
    assert identity(STEP).explain() == (
        "rank 3 of 5, local rank 1 of 2, node 1\n"
        "according to a Slurm step:\n"
        "  SLURM_PROCID=3\n"
        "  SLURM_STEP_NUM_TASKS=5\n"
        "  SLURM_LOCALID=1\n"
        "  SLURM_NODEID=1\n"
        "  SLURM_STEP_TASKS_PER_NODE=2(x2),1\n"
        "  SLURM_STEP_NODELIST=n[1-3]"
    )


def test_explain_says_why_a_batch_shell_is_one_process():
    assert identity(BATCH_SHELL).explain() == (
        "rank 0 of 1, local rank 0 of 1, node 0\n"
        "one process: no launcher set variables\n"
        "SLURM_NTASKS=5 tasks may run in this job, and this process is not one of them: `srun` starts one rank for each"
    )


def test_pals_counts_the_lines_of_the_node_file_where_it_does_not_know_the_world(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn1\nn2\nn2\n")
    environ = variables("PALS_RANKID=3 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PALS_NODEID=1")
    assert place(identity({**environ, "PBS_NODEFILE": str(nodes)})) == FOURTH


@for_each("text, counts", [("4", [4]), ("4(x2),2", [4, 4, 2]), ("1(x3)", [1, 1, 1]), ("2, 3", [2, 3])])
def test_tasks_per_node_are_read_as_slurm_writes_them(text, counts):
    assert tasks_per_node(text) == counts


def test_others_find_the_same_in_torchruns_words():
    torchruns = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 NODE_RANK=1"
    assert identity(OPEN_MPI).variables() == variables(torchruns)
