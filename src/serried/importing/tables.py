"""What programs and variables mean in a job script: tables, and a sentence for each."""

from __future__ import annotations

PRINTS = frozenset(
    [
        ":", "[", "[[", "cat", "date", "df", "echo", "env", "exit", "false", "free", "getconf", "hostname", "id",
        "lscpu", "ls", "nproc", "numactl-show", "nvcc", "nvidia-smi", "pbsnodes", "printenv", "printf", "ps", "pwd",
        "qstat", "return", "sacct", "scontrol", "seff", "sinfo", "sleep", "squeue", "sstat", "sync", "tee", "test",
        "top", "true", "type", "uname", "uptime", "wait", "wc", "which", "whoami",
    ]
)  # fmt: skip
"""They print, wait or end: nothing that a training has of them."""

HERE = frozenset([".", "$(pwd)", "`pwd`"])
"""The folder that a script was submitted in, which stands for `$PWD` and the scheduler's own variable."""

SHELL = {
    "set": "the first rank that fails ends the run, whatever the script says",
    "shopt": "nothing of it reaches a rank",
    "trap": "nothing of it reaches a rank: `limit.notify` tells a program by a signal",
    "wait": "the run is over when its ranks are",
    "exit": "the exit status is that of the first rank that failed",
    "deactivate": "the environment ends with the job",
    "unalias": "nothing of it reaches a rank",
}
"""Builtins that have nothing to do here."""

SETUP = frozenset(["ulimit", "umask", "unset", "eval", "alias", "newgrp", "renice"])
"""Builtins that change what is started after them."""

STAGING = "`data.stage` copies what it names to each node's own disk, and `{data}` in the command is where that is"
STAGING_OUT = "`data.results` brings back what the program writes into `{results}`, also from a node's own disk"
READS = "what it reads is not taken over: let the program do so, or give each run its command by `--commands`"
WRITES = "it writes a file: if the program reads that, make it beforehand"
FILES = "no part of the training: do it by hand, in the program, or in `environment.setup` on every node"

HANDLES_FILES = (
    {"cp", "rsync", "scp", "tar", "unzip", "gunzip", "gzip", "mv", "ln", "sbcast", "dd"}
    | {"wget", "curl", "git", "aws", "gsutil", "rclone", "huggingface-cli", "hf"}
    | {"touch", "chmod", "chgrp", "rm", "rmdir", "find", "sed", "awk", "grep", "sort", "xargs"}
)

PREPARES = {
    "mkdir": "`{results}` and `{checkpoints}` are there for every run; make other folders in the program",
    "pip": 'install it once: `environment.venv = "requirements.txt"` builds a virtual environment',
    "pip3": 'install it once: `environment.venv = "requirements.txt"` builds a virtual environment',
    "virtualenv": 'install it once: `environment.venv = "requirements.txt"` builds a virtual environment',
    "conda": '`environment.conda = "environment.yml"` builds a prefix',
    "mamba": '`environment.conda = "environment.yml"` builds a prefix',
    "wandb": "log in once on the login node, or name WANDB_API_KEY in `environment.secrets`",
    "ssh": "nothing is started over ssh",
    "sbatch": "`serried submit --chain N` goes on in further jobs",
    "qsub": "`serried submit --chain N` goes on in further jobs",
    "salloc": "an allocation within a job has no counterpart",
    "scancel": "`serried stop` ends a run",
    "tensorboard": "start it on the login node: what a run writes is in its folder, `serried show`",
    "jupyter": "nothing is started beside the training",
    "nvidia-smi": "nothing is started beside the training",
    "kill": "what the script started beside the training is not started",
    "pkill": "what the script started beside the training is not started",
}
"""What is done before or beside the training, and what to do instead."""

PROGRAMS = frozenset([("wandb", "agent"), ("conda", "run"), ("mamba", "run"), ("micromamba", "run")])
"""Which of these are what a job is for."""

SAID_BY_SERRIED = frozenset(
    [
        "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE",
        "SRUN_CPUS_PER_TASK", "RDZV_ID", "RDZV_ENDPOINT", "RDZV_HOST", "RDZV_PORT", "NNODES", "NPROC_PER_NODE",
        "GPUS_PER_NODE", "SLURM_EXPORT_ENV",
    ]
)  # fmt: skip
"""Variables that ranks get from Serried, or that a launcher's options were made of."""

MEETING = r"scontrol|NODELIST|NODEFILE|SLURM_(?:PROCID|LOCALID|NODEID)|/dev/(?:tcp|urandom)|shuf|RANDOM"
OF_THE_JOB = rf"hostname|{MEETING}"
"""What a script makes addresses and ports from."""

LOCAL_DISK = r"SLURM_TMPDIR|\bTMPDIR|PBS_JOBDIR|LOCAL_SCRATCH|/scratch-ssd|\$TMP\b"

FIRST_HOST = (
    r"\$\{?HOSTNAME\b\}?|\$\(\s*hostname(?:\s+-[\w-]+)*\s*\)|`hostname(?:\s+-[\w-]+)*`"
    r"|\$\(\s*scontrol show hostnames?[^()]*\)"
)
"""The first node's name, as the shell of a job's script works it out, once for all ranks."""
ONCE = r"\$\((?!\()|`|\$\{?(?:RANDOM|SECONDS|BASHPID|EPOCHSECONDS)\b|\$\$"
"""What is not the same twice."""
