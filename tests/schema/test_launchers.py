"""Where a user's program begins on the lines of launchers, as people write them."""

from __future__ import annotations

import shlex

import pytest

from serried.schema import launchers
from serried.schema.launchers import INTERPRETER, NoLaunchError, NotUnderstoodError
from tables import for_each

LINES = [
    "srun | python train.py --lr 1e-3",
    "srun -n8 -N 2 --gpus-per-node=4 | python train.py -n 9",
    "srun --ntasks 8 --cpu-bind=none,v --kill-on-bad-exit=1 | ./train",
    "srun -lu -K1 -c12 --exclusive | bash -c 'torchrun x.py'",
    "srun -ul -n2 --export=ALL,X=1 --output=out-%t.txt | hostname",
    "srun --jobid 77 --wait=60 --overlap | singularity exec img.sif python x.py",
    "srun -N1 -w n1 -r 0 --mpi=pmix_v3 --hint nomultithread -- | python x.py",
    "srun -n1 -K --exact --mem=0 -A a -p gpu -t 1:00:00 | ./a.out",
    "mpirun -np 4 | python train.py",
    "mpirun --allow-run-as-root -np 4 --mca btl ^openib -x PATH --bind-to none -H a:2,b:2 | python train.py -x 1",
    "mpirun -n 16 --map-by ppr:8:node:PE=4 --report-bindings --oversubscribe | ./train",
    "mpirun -genv OMP_NUM_THREADS 4 -ppn 8 -f hosts -bind-to core | python x.py",
    "mpiexec -n 8 --ppn 4 --depth=8 --cpu-bind depth --env X=1 --hostfile $PBS_NODEFILE | python x.py",
    "mpiexec -n 8 --ppn 4 -d 8 --cpu-bind list:0,1:2,3 --env=X=1 -l --line-buffer | ./affinity.sh python x.py",
    "mpiexec --pmi=pmix --envall -n 48 --ppn 12 --cpu-bind=verbose,list:1:8:16 | python train.py --ppd=4",
    "mpiexec --pmi pmix -n 12 -ppn 12 -l --line-buffer --no-vni --mem-bind list:0:0 | python -m app.main",
    "mpiexec.hydra -np 2 -env A 1 -l | hostname",
    "orterun --hostfile hosts -N 4 --tag-output | python x.py",
    "pbsdsh | hostname",
    "pbsdsh -v -n 1 -- | /bin/bash -c 'hostname -s'",
    "pbs_tmrsh n2 | python train.py -n 1",
    "pbs_tmrsh -n -l ada n2 -n | python train.py",
    "horovodrun -np 4 -H localhost:4 --verbose | python train.py",
    "horovodrun --num-proc 8 --hosts a:4,b:4 --gloo -p 12345 --start-timeout 100 | python train.py --hosts x",
]


@for_each("line", LINES)
def test_the_program_begins_after_the_options(line):
    before, _, program = line.partition(" | ")
    name, *options = shlex.split(before)
    split = launchers.split(name, [*options, *shlex.split(program)])
    assert (split.options, split.program) == (options, shlex.split(program))
    assert split.local_rank_index is None


PYTHONS = {
    # the line: its options with the flag for programs, and the program
    "torchrun --nproc_per_node=4 train.py --lr 1": "--nproc_per_node=4 --no-python | {python} -u train.py --lr 1",
    "torchrun --nproc-per-node 4 -m pkg -m x": "--nproc-per-node 4 --no-python | {python} -u -m pkg -m x",
    "torchrun --standalone --nproc_per 2 --no-python ./a b": "--standalone --nproc_per 2 --no-python | ./a b",
    "torchrun --nnodes 2:4 --rdzv_conf a=1 --module m": "--nnodes 2:4 --rdzv_conf a=1 --no-python | {python} -u -m m",
    "torchrun -r 3 -t 1 --log_dir x t.py": "-r 3 -t 1 --log_dir x --no-python | {python} -u t.py",
    "python -m torch.distributed.run --nproc_per_node 2 t.py": (
        "-m torch.distributed.run --nproc_per_node 2 --no-python | {python} -u t.py"
    ),
    "python3 -u -X dev -mtorch.distributed.run t.py": (
        "-u -X dev -mtorch.distributed.run --no-python | {python} -u t.py"
    ),
    "python -m torch.distributed.launch --use_env t.py 1": (
        "-m torch.distributed.launch --use_env --no-python | {python} -u t.py 1"
    ),
    "accelerate launch --config_file c --multi_gpu t.py -q": (
        "launch --config_file c --multi_gpu --no_python | {python} -u t.py -q"
    ),
    "accelerate launch -m --num_processes 2 pkg": "launch --num_processes 2 --no_python | {python} -u -m pkg",
    "accelerate launch --num_processes=2 --no_python a": "launch --num_processes=2 --no_python | a",
    "python -m accelerate.commands.launch --cpu t.py": (
        "-m accelerate.commands.launch --cpu --no_python | {python} -u t.py"
    ),
    "deepspeed --no_local_rank --num_gpus 4 t.py --deepspeed d": (
        "--no_local_rank --num_gpus 4 --no_python | {python} -u t.py --deepspeed d"
    ),
}


@for_each(("line", "expected"), PYTHONS.items())
def test_a_python_program_becomes_a_command_as_the_launcher_itself_would_build_it(line, expected):
    name, *words = shlex.split(line)
    options, _, program = expected.replace("{python}", INTERPRETER).partition(" | ")
    split = launchers.split(name, words)
    assert (split.options, split.program) == (options.split(), program.split())
    assert split.local_rank_index is None


@for_each(
    ("line", "index"),
    [
        ("python -m torch.distributed.launch --nproc_per_node=2 t.py a", 3),
        ("python -m torch.distributed.launch -m pkg a", 4),
        ("python -m torch.distributed.launch --no_python ./a b", 1),
        ("deepspeed t.py", 3),
        ("deepspeed --module pkg", 4),
        ("deepspeed --no_python ./a", 1),
    ],
)
def test_the_place_of_a_local_rank_that_the_launcher_adds_is_known(line, index):
    name, *words = line.split()
    assert launchers.split(name, words).local_rank_index == index


REASONS = [
    ("srun --multi-prog conf", "option `--multi-prog`"),
    ("srun --pty bash", "option `--pty`"),
    ("srun -n1 a : -n2 b", "several programs in one step"),
    ("srun --container-image=x python t.py", "option `--container-image=x`"),
    ("srun -n2 --container-mounts /a:/a --container-image x python t.py", "option `--container-mounts`"),
    ("srun --new-option 3 python t.py", "unknown option `--new-option`"),
    ("srun -n1 -y python t.py", "unknown option `-y`"),
    ("srun -n", "`-n` without a value"),
    ("torchrun --run-path t.py", "option `--run-path`"),
    ("torchrun -- t.py", "unknown option `--`"),
    ("accelerate launch --tpu t.py", "option `--tpu`"),
    ("deepspeed --autotuning run t.py", "option `--autotuning`"),
    ("mpirun -np 1 a : -np 2 b", "several programs in one launch"),
    ("mpirun -np 1 --app file", "option `--app`"),
    ("mpirun --mca a", "`--mca` without a value"),
    ("mpirun -nonsense 3 a", "unknown option `-nonsense`"),
    ("horovodrun --new t.py", "unknown option `--new`"),
]


@for_each(("line", "reason"), REASONS)
def test_a_line_that_is_not_understood_has_a_reason(line, reason):
    name, *words = line.split()
    with pytest.raises(NotUnderstoodError) as raised:
        launchers.split(name, words)
    assert str(raised.value) == reason


@for_each(
    "line",
    [
        "srun --help", "srun", "srun -n8", "srun -V", "pbsdsh -n 1", "pbs_tmrsh n2",
        "pbs_tmrsh n2 /bin/sh -c orted",
        "srun --ntasks-per-node=1 --kill-on-bad-exit --mpi=none --ntasks=2 orted -mca ess slurm",
        "srun -N2 -n2 /opt/mpi/bin/hydra_pmi_proxy --control-port n1:33", "srun hydra_bstrap_proxy --upstream-port 1",
        "srun -n2 env LD_PRELOAD= /opt/prrte/bin/prted --prtemca ess slurm", "pbsdsh -- /opt/impi/pmi_proxy --rmk pbs",
        "torchrun", "torchrun -h", "accelerate", "accelerate config",
        "accelerate env --config_file x", "accelerate test", "deepspeed --help", "mpirun --version", "mpirun -V",
        "deepspeed --launcher=SLURM t.py",
        "horovodrun --check-build", "horovodrun -cb", "python t.py -m torch.distributed.run", "python", "python -c x",
        "python -m pip install torch", "python -W ignore t.py", "python - -m torch.distributed.run",
    ],
)  # fmt: skip
def test_a_line_that_starts_no_ranks_is_none(line):
    name, *words = line.split()
    with pytest.raises(NoLaunchError):
        launchers.split(name, words)
