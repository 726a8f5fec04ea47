"""RecognisedLaunch lines: the command and launcher of each, or the reason why a line stays in the script."""

from __future__ import annotations

import dataclasses

import pytest

from serried.importing.launchers import NotRecognised, Shape, read
from serried.importing.lines import commands
from tables import for_each

VALUES = {"SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "3", "LR": "0.1"}
PLACEHOLDERS = {"SLURM_ARRAY_TASK_ID": "{task}", "SLURM_NNODES": "{nodes}", "SLURM_GPUS_ON_NODE": "{gpus}"}
TASKS = Shape(2, 4, 4, 3, VALUES, PLACEHOLDERS)
"""Two nodes, a task for each of four GPUs."""
NODES = Shape(2, 1, 4, 12, {**VALUES, "SLURM_NTASKS": "2"}, PLACEHOLDERS)
"""Two nodes, a task on each."""
NODE = Shape(1, 1, 4, 12, {**VALUES, "SLURM_NTASKS": "1", "SLURM_NNODES": "1"}, PLACEHOLDERS)
TASKS_ON_A_NODE = NODE._replace(tasks=4)


def launched(line: str, shape: Shape) -> dict[str, object]:
    [command] = commands(line)
    launch = dataclasses.asdict(read(command.words, shape))
    return {key: value for key, value in launch.items() if value}


@for_each(
    ("shape", "line", "launch"),
    [
        (NODE, "python train.py --lr 0.1", {"command": "python train.py --lr 0.1", "kind": "single", "ranks": 1}),
        (
            NODE,
            "A=1 exec /opt/bin/python3.11 -u t.py '{rank}' {x}",
            {"command": "/opt/bin/python3.11 -u t.py {{rank}} {x}", "kind": "single", "ranks": 1, "env": {"A": "1"}},
        ),
        (
            NODE,
            'python t.py --i=$SLURM_ARRAY_TASK_ID "$LR" --n ${SLURM_NTASKS} $SLURM_NNODES',
            {"command": "python t.py --i={task} 0.1 --n 1 {nodes}", "kind": "single", "ranks": 1},
        ),
        (TASKS, "srun python t.py", {"command": "python t.py", "kind": "srun", "ranks": 4}),
        (
            TASKS,
            "srun -n8 -N 2 --ntasks-per-node=4 -c $SLURM_CPUS_PER_TASK --mpi=pmix -l -K ./solver -n 5",
            {"command": "./solver -n 5", "kind": "srun", "ranks": 4, "options": ["--mpi=pmix"]},
        ),
        (
            NODES,
            "srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node 4 --rdzv_backend c10d --max-restarts=3 t.py --lr 1",
            {"command": "python t.py --lr 1", "kind": "torchrun", "ranks": 4, "max_restarts": 3},
        ),
        (
            NODE,
            "torchrun --rdzv_id $SLURM_JOB_ID --rdzv_endpoint=$(hostname):29500 --nproc-per-node=gpu -m p.train x",
            {"command": "python -m p.train x", "kind": "torchrun", "ranks": 4},
        ),
        (
            NODE,
            "python -m torch.distributed.run --nproc_per_node=2 t.py",
            {"command": "python t.py", "kind": "torchrun", "ranks": 2},
        ),
        (
            TASKS,
            "mpirun -np $SLURM_NTASKS --bind-to none -map-by ppr:4:node -x PATH --mca btl ^openib python t.py",
            {"command": "python t.py", "kind": "mpirun", "ranks": 4, "options": ["--mca", "btl", "^openib"]},
        ),
        (
            TASKS_ON_A_NODE,
            "horovodrun -np 4 python t.py",
            {"command": "python t.py", "kind": "horovodrun", "ranks": 4},
        ),
    ],
)
def test_a_launch_line_is_recognised(shape: Shape, line: str, launch: dict[str, object]):
    found = launched(line, shape)
    assert {**found, "command": " ".join(read_words(found["command"]))} == launch


def read_words(command: object) -> list[str]:
    assert isinstance(command, list)
    return command


@for_each(
    ("shape", "line", "reason"),
    [
        (TASKS, "python t.py", "one process starts, and the script requests 8 tasks"),
        (NODE, "python t.py $UNKNOWN", "only bash knows the word `$UNKNOWN`"),
        (NODE, "python t.py *.txt", "only bash knows the word `*.txt`"),
        (NODE, "python t.py ~/x", "only bash knows the word `~/x`"),
        (NODE, "python t.py '{resume:--from}'", "braces that Serried would fill in"),
        (NODE, "python t.py $SLURM_JOB_ID", "only bash knows the word `$SLURM_JOB_ID`"),
        (NODE, "API_KEY=1 python t.py", "a secret has no place in serried.toml"),
        (NODE, "PATH=/x python t.py", "`PATH` changes more than the program"),
        (NODE, "./run.sh", "`run.sh` is not recognised"),
        (NODE, "bash run.sh", "`bash` is not recognised"),
        (NODE, "$CMD", "`$CMD` is not recognised"),
        (NODE, "time python t.py", "`time` is not recognised"),
        (NODE, "singularity exec x.sif python t.py", "`singularity` is not recognised"),
        (NODE, "python -m torch.distributed.launch t.py", "`python -m torch.distributed.launch` is not recognised"),
        (TASKS, "srun -n 4 python t.py", "`--ntasks` is 4, and the job has 8"),
        (TASKS, "srun --chdir=sub python t.py", "the launcher's option `--chdir`"),
        (TASKS, "srun --gpus-per-task=1 python t.py", "the launcher's option `--gpus-per-task`"),
        (TASKS, "srun --multi-prog a.conf", "the launcher's option `--multi-prog`"),
        (TASKS, "srun --export=NONE python t.py", "srun's option `--export`"),
        (TASKS, "srun bash -c 'python t.py'", "the launcher starts `bash`"),
        (TASKS, "srun torchrun t.py", "srun starts torchrun several times on each node"),
        (TASKS, "srun -n 8 -n 8 python t.py", "the launcher's option `-n` twice"),
        (TASKS, "srun '-n' 8 python t.py", "the launcher's option `'-n'`"),
        (TASKS, "srun", "the launcher starts ``"),
        (NODES, "torchrun --nnodes=2 t.py", "torchrun runs on several nodes without srun and `--rdzv-backend=c10d`"),
        (
            NODES,
            "srun torchrun --nnodes=2 t.py",
            "torchrun runs on several nodes without srun and `--rdzv-backend=c10d`",
        ),
        (NODES, "torchrun t.py", "`--nnodes` is 1, and the job has 2"),
        (
            TASKS_ON_A_NODE,
            "torchrun t.py",
            "the launcher starts once, and the script requests 4 tasks on each node",
        ),
        (NODE, "torchrun --nnodes=1:2 t.py", "`--nnodes` is not a number that the import knows"),
        (NODE, "torchrun --nproc-per-node=8 t.py", "8 processes share 4 GPUs"),
        (NODE, "torchrun --log-dir=x t.py", "the launcher's option `--log-dir`"),
        (NODE, "torchrun --master_port=$(port) t.py", "`--master-port` is computed"),
        (NODE, "torchrun --nproc-per-node", "the launcher's option `--nproc-per-node` without a value"),
        (TASKS, "mpirun -np 4 python t.py", "mpirun's option `-np 4`"),
        (TASKS, "mpirun --env A=1 python t.py", "mpirun's option `--env`"),
        (TASKS, "mpirun -x A=1 python t.py", "mpirun's option `-x A=1`"),
        (TASKS, "mpiexec -n 8 python t.py", "`mpiexec` is not recognised"),
        (TASKS, "horovodrun -np 8 python t.py", "the launcher has to know the nodes of the job"),
        (TASKS_ON_A_NODE, "horovodrun python t.py", "horovodrun's `-np` differs from the job's number of tasks"),
        (NODE, "accelerate launch --num_processes 4 t.py", "`accelerate` is not recognised"),
    ],
)
def test_a_line_that_means_more_stays_in_the_script(shape: Shape, line: str, reason: str):
    with pytest.raises(NotRecognised) as caught:
        launched(line, shape)
    assert str(caught.value) == reason
