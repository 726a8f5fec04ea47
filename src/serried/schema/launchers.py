"""Launchers as data: where the user's program begins on their command lines, and the variables of their ranks. Pure.

Options are read to find the program alone: the real launcher gets each of them as written.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple

from serried.base import NamedTuple
from serried.schema import names

REQUEUES = "scontrol"
"""Requeues the script's own job. A script that prints the status has not handled that the requeue was refused."""

INTERPRETER = "{python}"
"""Stands for the Python of the launcher."""

DAEMONS = ("orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy", "mpispawn")
"""Programs by which MPI's launchers start ranks on other nodes: they are no ranks, whoever starts them."""


class NotUnderstoodError(Exception):
    """The line is for the real launcher as it is. The message is the reason."""


class NoLaunchError(Exception):
    """The line starts no ranks: `srun --help`, `accelerate config`."""


GETOPT, ARGPARSE, MPI = "getopt", "argparse", "mpi"
"""How a launcher reads its options.

As getopt_long does with `+`, without abbreviations: `-n8`, `-lu`, `--ntasks 8`, `--ntasks=8`.
As argparse does, with unique abbreviations: `--nproc_per_node=8`, `--nproc-per 8`, `-m`.
As Open MPI, MPICH and PALS do: one dash or two, and a value in the next word or after `=`.
"""


class Syntax(NamedTuple):
    kind: str
    """The launcher: `srun`, `torchrun`, `mpirun` …"""
    style: str
    valued: FrozenSet[str]
    """Options that are followed by a value, by their long names."""
    flags: FrozenSet[str]
    """Options without a value, or with a value after `=` alone, such as `--exclusive=user`."""
    left_alone: FrozenSet[str]
    """Options with which a launch stays as it is: the rank program would not work."""
    no_launch: FrozenSet[str]
    two_valued: FrozenSet[str]
    long_names: Dict[str, str]
    """`-n` -> `--ntasks`."""
    no_python: str
    """The flag for a program that is not Python, of launchers that run Python scripts and modules."""

    @property
    def known(self) -> FrozenSet[str]:
        return self.valued | self.flags | self.left_alone | self.no_launch | self.two_valued


def _syntax(kind: str, style: str, *, no_python: str = "", **options: str) -> Syntax:
    """`options` are lists of `--name` or `-n|--name`."""
    entries = {field: [word.split("|") for word in text.split()] for field, text in options.items()}
    long = {field: frozenset(entry[-1] for entry in entries[field]) for field in entries}
    return Syntax(
        kind,
        style,
        valued=long.get("valued", frozenset()),
        flags=long.get("flags", frozenset()),
        left_alone=long.get("left_alone", frozenset()),
        no_launch=long.get("no_launch", frozenset()),
        two_valued=long.get("two_valued", frozenset()),
        long_names={entry[0]: entry[-1] for each in entries.values() for entry in each},
        no_python=no_python,
    )


class ParsedOptions(NamedTuple):
    values: Dict[str, str]
    """By long name; an option without a value has an empty one."""
    words: List[Tuple[str, str]]
    """Each word before the program, with the long name of its option, or an empty name for a value."""


def parse_options(syntax: Syntax, words: Sequence[str]) -> ParsedOptions:
    """The options before the program. Raises NotUnderstoodError or NoLaunchError."""
    parsed = ParsedOptions({}, [])
    index = 0
    while index < len(words) and words[index].startswith("-"):
        word, following = words[index], words[index + 1 : index + 2]
        if not word.strip("-") and (word != "--" or syntax.style != ARGPARSE):
            break
        name, value, count = _option(syntax, word, following[0] if following else "", parsed)
        for offset in range(count + 1):
            if index + offset >= len(words):
                raise NotUnderstoodError(f"`{word}` without a value")
            parsed.words.append((words[index + offset], "" if offset else name))
        parsed.values[name] = words[index + count] if count else value
        index += count + 1
    return parsed


def _option(syntax: Syntax, word: str, following: str, parsed: ParsedOptions) -> Tuple[str, str, int]:
    """The name of an option, the value that is part of `word`, and the number of words that follow as values."""
    if syntax.style == GETOPT and not word.startswith("--"):
        return _letters(syntax, word, parsed)
    written, equals, value = word.partition("=")
    if syntax.style == MPI:
        name = written.lstrip("-")
        if name in ("env", "e") and (equals or "=" in following):  # PALS; MPICH has `-env NAME VALUE`
            return name, value, 0 if equals else 1
        if name == "env":
            return name, value, 2
        if name == "d" and following.isdigit():  # the depth of PALS; a flag of Open MPI
            return name, value, 1
        _admit(syntax, name, word)
        return name, value, 2 if name in syntax.two_valued else int(name in syntax.valued and not equals)
    name = syntax.long_names.get(written, written)
    if syntax.style == ARGPARSE and name.startswith("--"):
        name = name.replace("_", "-")
        full = [option for option in syntax.known if name != "--" and option.startswith(name)]
        name = full[0] if len(full) == 1 and name not in syntax.known else name
    _admit(syntax, name, word)
    return name, value, int(name in syntax.valued and not equals)


def _letters(syntax: Syntax, word: str, parsed: ParsedOptions) -> Tuple[str, str, int]:
    """As `_option`, for the last one of `-lun8`."""
    name = ""
    for end, letter in enumerate(word[1:], 2):
        name, rest = syntax.long_names.get(f"-{letter}", f"-{letter}"), word[end:]
        _admit(syntax, name, word)
        if name in syntax.valued:
            return name, rest, 0 if rest else 1
        if rest.isdigit():  # an optional value, `-K1`
            return name, rest, 0
        parsed.values[name] = ""
    return name, "", 0


def _admit(syntax: Syntax, name: str, word: str) -> None:
    if name in syntax.no_launch:
        raise NoLaunchError
    if name in syntax.left_alone:
        raise NotUnderstoodError(f"option `{word}`")
    if name not in syntax.known:
        raise NotUnderstoodError(f"unknown option `{word}`")


OPEN_MPI_NAMES = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
LAUNCHERS = ("srun", "torchrun", *OPEN_MPI_NAMES, "horovodrun", "accelerate", "deepspeed", "pbsdsh", "pbs_tmrsh")

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner.launch": "horovodrun",
}
"""The launcher that `python -m MODULE` is."""
_PYTHON_FLAGS = "bBdEiIOPqRsSuvVx"


class LaunchLine(NamedTuple):
    """The rank program belongs between `options` and `program`."""

    options: List[str]
    """The words after the launcher's name."""
    program: List[str]
    """The user's, as the rank program gets it. A Python program begins with INTERPRETER."""
    kind: str
    """The launcher: `srun`, `torchrun`, `mpirun` …"""
    job: str = ""
    """The job that the ranks belong to, if the line names one."""
    is_detached: bool = False
    """The scheduler starts the ranks. They inherit nothing from the script, and their output does not come back."""
    local_rank_index: Optional[int] = None
    """If the launcher adds `--local-rank=N` as the first argument: its index in `program` without a rank program."""


def split(name: str, argv: Sequence[str]) -> LaunchLine:
    """The line `name argv…` at the point where a rank program belongs. `name` is one of LAUNCHERS, or a Python.

    Raises NotUnderstoodError or NoLaunchError.
    """
    words = list(argv)
    if name in LAUNCHERS:
        return _split(name, words)
    index = python_module(words)
    if index is None:
        raise NoLaunchError
    module, begin = (words[index + 1], index + 2) if words[index] == "-m" else (words[index][2:], index + 1)
    line = _split(module if module in _SYNTAXES else MODULES[module], words[begin:])
    return line._replace(options=words[:begin] + line.options)


def python_module(words: Sequence[str]) -> Optional[int]:
    """The index of `-m` if Python runs a module that is a launcher."""
    index = 0
    while index < len(words):
        word = words[index]
        if word == "-m":
            return index if index + 1 < len(words) and words[index + 1] in MODULES else None
        if word.startswith("-m"):
            return index if word[2:] in MODULES else None
        if word in ("-X", "-W"):
            index += 2
        elif word.startswith(("-X", "-W")) or (word[:1] == "-" and word[1:] and not word[1:].strip(_PYTHON_FLAGS)):
            index += 1
        else:
            return None
    return None


def _split(name: str, words: List[str]) -> LaunchLine:
    if name == "accelerate":
        if words[:1] != ["launch"]:
            raise NoLaunchError
        line = _split("accelerate.commands.launch", words[1:])
        return line._replace(options=["launch", *line.options])
    syntax = _SYNTAXES[name]
    if ":" in words and syntax.kind in ("srun", "mpirun"):
        raise NotUnderstoodError(f"several programs in one {'step' if name == 'srun' else 'launch'}")
    options = parse_options(syntax, words)
    if name == "deepspeed" and options.values.get("--launcher", "pdsh").lower() not in _HONOUR_NO_PYTHON:
        raise NoLaunchError
    if syntax.no_python:
        ends_with = _ADDS_LOCAL_RANK.get(name)
        adds_local_rank = ends_with is not None and ends_with not in options.values
        return _of_python(syntax, options, words[len(options.words) :], adds_local_rank=adds_local_rank)
    begin = len(options.words)
    if name == "pbs_tmrsh":
        begin += 1  # the host, which further options may follow
        begin += len(parse_options(syntax, words[begin:]).words)
        if any(daemon in word for word in words[begin:] for daemon in DAEMONS):  # a line for the shell
            raise NoLaunchError
    begin += words[begin : begin + 1] == ["--"]
    program = words[begin:]
    if not program or any(word.rpartition("/")[2] in DAEMONS for word in program):
        raise NoLaunchError
    is_detached = name in ("pbsdsh", "pbs_tmrsh")
    return LaunchLine(words[:begin], program, syntax.kind, options.values.get("--jobid", ""), is_detached)


def _of_python(syntax: Syntax, options: ParsedOptions, program: List[str], *, adds_local_rank: bool) -> LaunchLine:
    """For launchers that run a Python script, a module, or with `no_python` any program."""
    if not program:
        raise NoLaunchError
    begin = [word for word, name in options.words if name != "--module"]
    index = 1
    if "--no-python" not in options.values:
        is_module = "--module" in options.values
        program = [INTERPRETER, "-u", *(["-m"] if is_module else []), *program]
        index = 4 if is_module else 3
        begin.append(syntax.no_python)
    return LaunchLine(begin, program, syntax.kind, local_rank_index=index if adds_local_rank else None)


_ADDS_LOCAL_RANK = {"torch.distributed.launch": "--use-env", "deepspeed": "--no-local-rank"}
"""Launchers that add `--local-rank=N` to the program's arguments, and the option without which they do."""
_HONOUR_NO_PYTHON = ("pdsh", "openmpi", "mpich", "impi", "mvapich")
"""Values of deepspeed's `--launcher`. With another value deepspeed calls srun with Python; that srun is the launch."""


SRUN_OPTIONS = _syntax(
    "srun",
    GETOPT,
    valued="""
        --accel-bind -A|--account --acctg-freq --bb --bbf -b|--begin -D|--chdir --cluster --cluster-constraint
        -M|--clusters --comment -C|--constraint -S|--core-spec --cores-per-socket --cpu-bind --cpu-freq --cpu_bind
        --cpus-per-gpu -c|--cpus-per-task --deadline --delay-boot -P|--dependency -d|--dependency -m|--distribution
        --epilog -e|--error -x|--exclude --export --extra -B|--extra-node-info --gid --gpu-bind --gpu-freq -G|--gpus
        --gpus-per-node --gpus-per-socket --gpus-per-task --gres --gres-flags --het-group --hint -i|--input
        -J|--job-name --jobid -L|--licenses --mail-type --mail-user --mcs-label --mem --mem-bind --mem-per-cpu
        --mem-per-gpu --mem_bind --mincpus --mpi --msg-timeout --network -F|--nodefile -w|--nodelist -N|--nodes
        -n|--ntasks --ntasks-per-core --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --ntasks-per-tres
        --open-mode -o|--output --pack-group -p|--partition --power --prefer --priority --profile --prolog -q|--qos
        -r|--relative --reservation --segment --signal --sockets-per-node --switches --task-epilog --task-prolog
        --thread-spec -T|--threads --threads-per-core -t|--time --time-min --tmp --tres-bind --tres-per-task --uid
        -W|--wait --wckey
    """,
    flags="""
        --contiguous -X|--disable-status --exact --exclusive -H|--hold -I|--immediate -K|--kill-on-bad-exit -l|--label
        --nice -k|--no-kill -O|--overcommit --overlap -s|--oversubscribe -E|--preserve-env --propagate -Q|--quiet
        --quit-on-interrupt --reboot --resv-ports --share --spread-job -u|--unbuffered --use-min-nodes -v|--verbose
        --whole --x11
    """,
    left_alone="""
        --bcast --container --container-entrypoint --container-entrypoint-log --container-env --container-id
        --container-image --container-mount-home --container-mounts --container-name --container-readonly
        --container-remap-root --container-save --container-workdir --container-writable --external-launcher
        --interactive --multi-prog -Z|--no-allocate --no-container-entrypoint --no-container-mount-home
        --no-container-remap-root --pty --send-libs
    """,
    no_launch="-h|--help --test-only --usage -V|--version",
)
"""In a container of Slurm's or pyxis, the rank program may not exist."""

TORCHRUN_OPTIONS = _syntax(
    "torchrun",
    ARGPARSE,
    valued="""
        --nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts --monitor-interval
        --start-method --event-log-handler --role --log-dir -r|--redirects -t|--tee --local-ranks-filter
        --duplicate-stdout-filters --duplicate-stderr-filters --node-rank --master-addr --master-port --local-addr
        --logs-specs --numa-binding --signals-to-handle --shutdown-timeout
    """,
    flags="--standalone -m|--module --no-python --use-env --virtual-local-rank",
    left_alone="--run-path",
    no_launch="-h|--help",
    no_python="--no-python",
)

ACCELERATE_OPTIONS = _syntax(
    "accelerate",
    ARGPARSE,
    valued="""
        --config-file --mixed-precision --num-processes --num-machines --num-cpu-threads-per-process --dynamo-backend
        --dynamo-mode --gpu-ids --machine-rank --main-process-ip --main-process-port -t|--tee --log-dir --role
        --rdzv-backend --rdzv-conf --max-restarts --monitor-interval --main-training-function --deepspeed-config-file
        --zero-stage --offload-optimizer-device --offload-param-device --offload-optimizer-nvme-path
        --offload-param-nvme-path --gradient-accumulation-steps --gradient-clipping --zero3-init-flag
        --zero3-save-16bit-model --deepspeed-hostfile --deepspeed-exclusion-filter --deepspeed-inclusion-filter
        --deepspeed-multinode-launcher --deepspeed-moe-layer-cls-names --fsdp-version --fsdp-offload-params
        --fsdp-min-num-params --fsdp-sharding-strategy --fsdp-reshard-after-forward --fsdp-auto-wrap-policy
        --fsdp-transformer-layer-cls-to-wrap --fsdp-backward-prefetch --fsdp-state-dict-type --fsdp-forward-prefetch
        --fsdp-use-orig-params --fsdp-cpu-ram-efficient-loading --fsdp-sync-module-states
        --fsdp-activation-checkpointing --fsdp-activation-checkpointing-offload --fsdp-backward-prefetch-policy
        --megatron-lm-tp-degree --megatron-lm-use-custom-fsdp --megatron-lm-no-load-optim --megatron-lm-eod-mask-loss
        --megatron-lm-overlap-cpu-optimizer-d2h-h2d --megatron-lm-no-save-optim --megatron-lm-optimizer-cpu-offload
        --megatron-lm-use-precision-aware-optimizer --megatron-lm-decoder-last-pipeline-num-layers
        --megatron-lm-pp-degree --megatron-lm-num-micro-batches --megatron-lm-sequence-parallelism
        --megatron-lm-recompute-activations --megatron-lm-use-distributed-optimizer --megatron-lm-gradient-clipping
        --megatron-lm-recompute-granularity --megatron-lm-recompute-method --megatron-lm-recompute-num-layers
        --megatron-lm-attention-backend --megatron-lm-expert-model-parallel-size --megatron-lm-context-parallel-size
        --megatron-lm-attention-dropout --megatron-lm-hidden-dropout --megatron-lm-attention-softmax-in-fp32
        --megatron-lm-expert-tensor-parallel-size --megatron-lm-calculate-per-token-loss
        --megatron-lm-use-rotary-position-embeddings --fp8-backend --fp8-margin --fp8-interval --fp8-format
        --fp8-amax-history-len --fp8-amax-compute-algo --fp8-override-linear-precision --fp8-opt-level
        --fp8-enable-fsdp-float8-all-gather --fp8-pad-inner-dim --mpirun-hostfile --mpirun-ccl
        --parallelism-config-dp-replicate-size --parallelism-config-dp-shard-size --parallelism-config-tp-size
        --parallelism-config-cp-size --parallelism-config-cp-backend --parallelism-config-cp-comm-strategy
        --parallelism-config-sp-size --parallelism-config-sp-backend --parallelism-config-sp-seq-length
        --parallelism-config-sp-seq-length-is-variable --parallelism-config-sp-attn-implementation
    """,
    flags="""
        -q|--quiet --cpu --multi-gpu --enable-cpu-affinity --dynamo-use-fullgraph --dynamo-use-dynamic
        --dynamo-use-regional-compilation --use-deepspeed --use-fsdp --use-parallelism-config --use-megatron-lm
        --use-xpu --ipex --same-network --downcast-bf16 -m|--module --no-python --no-tpu-cluster
        --fp8-use-autocast-during-eval --debug
    """,
    left_alone="""
        --tpu --tpu-cluster --tpu-use-sudo --vm --env --aws-access-key-id --aws-secret-access-key
    """,
    no_launch="-h|--help",
    no_python="--no_python",
)

DEEPSPEED_OPTIONS = _syntax(
    "deepspeed",
    ARGPARSE,
    valued="""
        -H|--hostfile -i|--include -e|--exclude --num-nodes --min-elastic-nodes --max-elastic-nodes --num-gpus
        --num-accelerators --master-port --master-addr --node-rank --launcher --launcher-args --enable-each-rank-log
        --bind-core-list --ssh-port --venv-script
    """,
    flags="""
        --module --no-python --no-local-rank --no-ssh --no-ssh-check --force-multi --save-pid --elastic-training
        --bind-cores-to-rank
    """,
    left_alone="--autotuning",
    no_launch="-h|--help",
    no_python="--no_python",
)

MPIRUN_OPTIONS = _syntax(
    "mpirun",
    MPI,
    # Without dashes. Of Open MPI and PRRTE, MPICH and Intel MPI, and PALS.
    valued="""
        am bind-to c np cf cartofile cpu-list cpu-set cpus-per-proc cpus-per-rank debugger default-hostfile H host hnp
        hostfile launch-agent machinefile map-by max-restarts max-vm-size N n npernode npersocket ompi-server
        output-filename output path personality ppr prefix rank-by report-events report-pid report-uri rf rankfile stdin
        timeout tune wd wdir x xml-file xterm display pset runtime-options rtos dvm-uri mem-limit tmpdir f hosts
        genvlist envlist envuser ppn perhost rr iface rmk launcher launcher-exec bootstrap bootstrap-exec demux
        ranks-per-proc order-nodes topolib profile port-range usize outfile-pattern errfile-pattern configfile-args
        nodefile machine pmi-port branch-count membind hostos localhost trace-pt gpu-subsets exitcode
        silent-abort-timeout depth cpu-bind mem-bind gpu-bind procs-per-node startup-timeout network sstartup pmi
        pmi-version hostlist exclude-hosts ntasks rank-list soft umask
    """,
    flags="""
        allow-run-as-root bind-to-core bind-to-socket bycore bynode byslot bysocket continuous debug debug-daemons
        debug-daemons-file disable-recovery display-allocation display-devel-allocation display-devel-map
        display-diffable-map display-map display-topo do-not-resolve enable-instant-on-support enable-recovery
        get-stack-traces index-argv-by-rank leave-session-attached merge-stderr-to-stdout nolocal nooversubscribe
        noprefix novm output-proctable oversubscribe pernode q quiet report-bindings report-child-jobs-separately
        report-state-on-timeout set-cwd-to-session-dir show-progress tag-output timestamp-output use-hwthread-cpus
        use-regexp v verbose xml l prepend-rank genvall genvnone envall envnone enable-x disable-x info-all
        disable-auto-cleanup disable-hostname-propagation skip-launch-node label line-buffer no-transfer
        no-abort-on-failure abort-on-failure print-rank-map print-all-exitcodes s-all exclusive no-vni
    """,
    left_alone="""
        app configfile s preload-binary tv dvm do-not-launch gdb gtool gtoolfile p4pg spmd debug-devel
    """,
    no_launch="h help V version info build-info",
    two_valued="mca gmca pmixmca prtemca omca genv",
)

HOROVODRUN_OPTIONS = _syntax(
    "horovodrun",
    ARGPARSE,
    valued="""
        -np --num-proc -p --ssh-port -i --ssh-identity-file --start-timeout --network-interfaces --network-interface
        --output-filename --config-file --hosts -H -hostfile --hostfile --fusion-threshold-mb --cycle-time-ms
        --cache-capacity --autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample
        --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np --max-np --min-num-proc
        --max-num-proc --slots-per-host --slots --elastic-timeout --reset-limit --cooldown-range --host-discovery-script
        --blacklist-cooldown-range --timeline-filename --stall-check-warning-time-seconds
        --stall-check-shutdown-time-seconds --log-level --mpi-args --gloo-timeout-seconds --binding-args
        --num-nccl-streams --thread-affinity --prefix-timestamp --prefix-output-with-timestamp-format --run-func
    """,
    flags="""
        --disable-cache --verbose --no-hierarchical-allreduce --hierarchical-allreduce --no-hierarchical-allgather
        --hierarchical-allgather --autotune --no-autotune --timeline-mark-cycles --no-timeline-mark-cycles
        --no-stall-check --stall-check --log-with-timestamp --log-hide-timestamp --log-without-timestamp --tcp --gloo
        --mpi --prefix-output-with-timestamp --nics --disable-cache-response
    """,
    left_alone="--jsrun",
    no_launch="-h|--help -v|--version -cb --check-build",
)

PBSDSH_OPTIONS = _syntax(names.HIDES_FAILURES, GETOPT, valued="-c -n", flags="-s -v -o", no_launch="-h --version")
PBS_TMRSH_OPTIONS = _syntax("pbs_tmrsh", GETOPT, valued="-l", flags="-n", no_launch="--version")

_SYNTAXES = {
    "srun": SRUN_OPTIONS,
    "torchrun": TORCHRUN_OPTIONS,
    "torch.distributed.launch": TORCHRUN_OPTIONS,
    "accelerate.commands.launch": ACCELERATE_OPTIONS,
    "deepspeed": DEEPSPEED_OPTIONS,
    "horovodrun": HOROVODRUN_OPTIONS,
    "pbsdsh": PBSDSH_OPTIONS,
    "pbs_tmrsh": PBS_TMRSH_OPTIONS,
    **dict.fromkeys(OPEN_MPI_NAMES, MPIRUN_OPTIONS),
}


# Variables of ranks.
#
# Launchers that take precedence come first. MPI's launchers and torchrun precede a Slurm step, because within Slurm
# they start their daemons through `srun`: there SLURM_PROCID is that of the daemon.

Names = Tuple[str, ...]
"""Variables for one value; the first that is set counts."""


class LauncherVariables(NamedTuple):
    name: str
    title: str
    markers: Names
    """Variables that are all set in a process of this launcher."""
    rank: Names
    world_size: Names
    local_rank: Names
    local_world_size: Names = ()
    node_rank: Names = ()
    nodes: Names = ()
    """The number of nodes, for a launcher without `local_world_size`."""
    tasks_per_node: Names = ()
    """In Slurm's format, `4(x2),2`, in place of `local_world_size`."""
    hosts: Names = ()
    """The nodes' names as a host list, that of rank 0 first."""
    launch: Names = ()
    """Together these identify one launch on all its nodes."""
    can_carry: bool = False
    """The launcher may have started another launcher on each node, which started this process."""


TORCHRUN = LauncherVariables(
    "torchrun",
    "torchrun",
    ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
    ("RANK",),
    ("WORLD_SIZE",),
    ("LOCAL_RANK",),
    ("LOCAL_WORLD_SIZE",),
    ("GROUP_RANK", "NODE_RANK"),
    launch=("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
)
SERRIED = TORCHRUN._replace(
    name="serried",
    title="Serried's agent",
    markers=(names.MARK, names.RUN_ID, *TORCHRUN.markers),
    launch=(names.MARK,),
    can_carry=True,
)
HOROVOD = LauncherVariables(
    "horovod",
    "horovodrun",
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("HOROVOD_RANK",),
    ("HOROVOD_SIZE",),
    ("HOROVOD_LOCAL_RANK",),
    ("HOROVOD_LOCAL_SIZE",),
    ("HOROVOD_CROSS_RANK",),
    launch=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)
OPEN_MPI = LauncherVariables(
    "open-mpi",
    "Open MPI",
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK",),
    ("OMPI_COMM_WORLD_SIZE",),
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    launch=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
)
PMI = LauncherVariables(
    "pmi",
    "MPICH or Intel MPI",
    ("PMI_RANK", "PMI_SIZE"),
    ("PMI_RANK",),
    ("PMI_SIZE",),
    ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MPICH_LOCALRANKID"),
    ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    ("PALS_NODEID",),
    launch=("PMI_JOBID", "PALS_APID", "PMI_KVS_NAME"),
)
PALS = LauncherVariables(
    "pals",
    "PALS",
    ("PALS_RANKID",),
    ("PALS_RANKID",),
    ("PALS_SIZE", "PMI_SIZE"),
    ("PALS_LOCAL_RANKID",),
    ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
    ("PALS_NODEID",),
    launch=("PALS_APID",),
)
MVAPICH = LauncherVariables(
    "mvapich",
    "MVAPICH2",
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK",),
    ("MV2_COMM_WORLD_SIZE",),
    ("MV2_COMM_WORLD_LOCAL_RANK",),
    ("MV2_COMM_WORLD_LOCAL_SIZE",),
    launch=("MPISPAWN_ID", "PMI_ID"),
)
SLURM = LauncherVariables(
    "slurm",
    "a Slurm step",
    # The job's variables are also set in the batch shell, where a single process would take itself for rank 0 of many.
    ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("SLURM_PROCID",),
    ("SLURM_STEP_NUM_TASKS",),
    ("SLURM_LOCALID",),
    node_rank=("SLURM_NODEID",),
    tasks_per_node=("SLURM_STEP_TASKS_PER_NODE",),
    hosts=("SLURM_STEP_NODELIST",),
    launch=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    can_carry=True,
)
FLUX = LauncherVariables(
    "flux",
    "Flux",
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("FLUX_TASK_RANK",),
    ("FLUX_JOB_SIZE",),
    ("FLUX_TASK_LOCAL_ID",),
    nodes=("FLUX_JOB_NNODES",),
    launch=("FLUX_JOB_ID",),
    can_carry=True,
)
JSRUN = LauncherVariables(
    "jsrun",
    "jsrun",
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("JSM_NAMESPACE_RANK",),
    ("JSM_NAMESPACE_SIZE",),
    ("JSM_NAMESPACE_LOCAL_RANK",),
    ("JSM_NAMESPACE_LOCAL_SIZE",),
    launch=("LSB_JOBID", "JSM_NAMESPACE_ID"),
    can_carry=True,
)
GENERIC = TORCHRUN._replace(
    name="generic", title="the environment", markers=("RANK", "WORLD_SIZE", "MASTER_ADDR"), launch=()
)
SOURCES = (SERRIED, TORCHRUN, HOROVOD, OPEN_MPI, PMI, PALS, MVAPICH, SLURM, FLUX, JSRUN, GENERIC)
