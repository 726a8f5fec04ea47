"""Where the user's program begins on the command line of a launcher, and the line with a rank program before it.

Options are read for this purpose alone: the real launcher gets each of them as written. Pure.
"""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from serried.schema import names
from serried.schema.launcher_env import MODULES

INTERPRETER = "{python}"
"""Stands for the Python of the launcher."""

SUBMITTERS = ("sbatch", "salloc", "qsub")
"""Commands that pass their environment on to another job, where nothing of this run belongs."""


class NotUnderstoodError(Exception):
    """The line is for the real launcher as it is. The message is the reason."""


class NoLaunchError(Exception):
    """The line starts no ranks: `srun --help`, `accelerate config`."""


class Syntax(NamedTuple):
    valued: FrozenSet[str]
    """Options that are followed by a value."""
    flags: FrozenSet[str]
    """Options without a value, or with a value after `=` alone."""
    left_alone: FrozenSet[str] = frozenset()
    """Options with which a launch stays as it is: the rank program would not work."""
    no_launch: FrozenSet[str] = frozenset()
    two_valued: FrozenSet[str] = frozenset()

    @property
    def known(self) -> FrozenSet[str]:
        return self.valued | self.flags | self.left_alone | self.no_launch | self.two_valued


class ParsedOptions(NamedTuple):
    values: Dict[str, str]
    """By name; an option without a value has an empty one."""
    words: List[Tuple[str, str]]
    """Each word before the program, with the name of its option, or an empty name for a value."""


def option_names(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


SRUN = Syntax(
    valued=option_names("""
        -A -B -b -C -c -D -d -e -F -G -i -J -L -M -m -N -n -o -P -p -q -r -S -T -t -W -w -x
        --account --accel-bind --acctg-freq --bb --bbf --begin --chdir --cluster --cluster-constraint --clusters
        --comment --constraint --core-spec --cores-per-socket --cpu-bind --cpu_bind --cpu-freq --cpus-per-gpu
        --cpus-per-task --deadline --delay-boot --dependency --distribution --epilog --error --exclude --export
        --extra --extra-node-info --gid --gpu-bind --gpu-freq --gpus --gpus-per-node --gpus-per-socket --gpus-per-task
        --gres --gres-flags --het-group --hint --input --job-name --jobid --licenses --mail-type --mail-user
        --mcs-label --mem --mem-bind --mem_bind --mem-per-cpu --mem-per-gpu --mincpus --mpi --msg-timeout --network
        --nodefile --nodelist --nodes --ntasks --ntasks-per-core --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket
        --ntasks-per-tres --open-mode --output --pack-group --partition --power --prefer --priority --profile --prolog
        --qos --relative --reservation --segment --signal --sockets-per-node --switches --task-epilog
        --task-prolog --thread-spec --threads --threads-per-core --time --time-min --tmp --tres-bind --tres-per-task
        --uid --wait --wckey
    """),
    flags=option_names("""
        -E -H -I -K -k -l -O -Q -s -u -v -X
        --contiguous --disable-status --exact --exclusive --hold --immediate --kill-on-bad-exit --label --no-kill --nice
        --overcommit --overlap --oversubscribe --preserve-env --propagate --quiet --quit-on-interrupt --reboot
        --resv-ports --share --spread-job --unbuffered --use-min-nodes --verbose --whole --x11
    """),
    left_alone=option_names("""
        -Z --no-allocate --pty --multi-prog --bcast --send-libs --external-launcher --interactive
        --container --container-id --container-image --container-name --container-mounts --container-workdir
        --container-save --container-env --container-mount-home --no-container-mount-home --container-remap-root
        --no-container-remap-root --container-entrypoint --no-container-entrypoint --container-entrypoint-log
        --container-writable --container-readonly
    """),
    no_launch=option_names("-h --help --usage -V --version --test-only"),
)
"""Options with an attached value alone, such as `-K1` and `--exclusive=user`, are among the flags. In a container of
Slurm's or pyxis, the rank program may not exist."""

TORCHRUN = Syntax(
    valued=option_names("""
        --nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts --monitor-interval
        --start-method --event-log-handler --role --log-dir -r --redirects -t --tee --local-ranks-filter
        --duplicate-stdout-filters --duplicate-stderr-filters --node-rank --master-addr --master-port --local-addr
        --logs-specs --numa-binding --signals-to-handle --shutdown-timeout
    """),
    flags=option_names("--standalone -m --module --no-python --use-env --virtual-local-rank"),
    left_alone=option_names("--run-path"),
    no_launch=option_names("-h --help"),
)
ACCELERATE = Syntax(
    valued=option_names("""
        --config-file --mixed-precision --num-processes --num-machines --num-cpu-threads-per-process --dynamo-backend
        --dynamo-mode --gpu-ids --machine-rank --main-process-ip --main-process-port -t --tee --log-dir --role
        --rdzv-backend --rdzv-conf --max-restarts --monitor-interval --main-training-function
        --deepspeed-config-file --zero-stage --offload-optimizer-device --offload-param-device
        --offload-optimizer-nvme-path --offload-param-nvme-path --gradient-accumulation-steps --gradient-clipping
        --zero3-init-flag --zero3-save-16bit-model --deepspeed-hostfile --deepspeed-exclusion-filter
        --deepspeed-inclusion-filter --deepspeed-multinode-launcher --deepspeed-moe-layer-cls-names --fsdp-version
        --fsdp-offload-params --fsdp-min-num-params --fsdp-sharding-strategy --fsdp-reshard-after-forward
        --fsdp-auto-wrap-policy --fsdp-transformer-layer-cls-to-wrap --fsdp-backward-prefetch --fsdp-state-dict-type
        --fsdp-forward-prefetch --fsdp-use-orig-params --fsdp-cpu-ram-efficient-loading --fsdp-sync-module-states
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
    """),
    flags=option_names("""
        --quiet -q --cpu --multi-gpu --enable-cpu-affinity --dynamo-use-fullgraph --dynamo-use-dynamic
        --dynamo-use-regional-compilation --use-deepspeed --use-fsdp --use-parallelism-config --use-megatron-lm
        --use-xpu --ipex --same-network --downcast-bf16 -m --module --no-python --no-tpu-cluster
        --fp8-use-autocast-during-eval --debug
    """),
    left_alone=option_names("""
        --tpu --tpu-cluster --tpu-use-sudo --vm --env --aws-access-key-id --aws-secret-access-key
    """),
    no_launch=option_names("-h --help"),
)
DEEPSPEED = Syntax(
    valued=option_names("""
        -H --hostfile -i --include -e --exclude --num-nodes --min-elastic-nodes --max-elastic-nodes --num-gpus
        --num-accelerators --master-port --master-addr --node-rank --launcher --launcher-args --enable-each-rank-log
        --bind-core-list --ssh-port --venv-script
    """),
    flags=option_names("""
        --module --no-python --no-local-rank --no-ssh --no-ssh-check --force-multi --save-pid --elastic-training
        --bind-cores-to-rank
    """),
    left_alone=option_names("--autotuning"),
    no_launch=option_names("-h --help"),
)
MPIRUN = Syntax(
    # Open MPI and PRRTE, then MPICH and Intel MPI, then PALS.
    valued=option_names("""
        am bind-to c np cf cartofile cpu-list cpu-set cpus-per-proc cpus-per-rank debugger default-hostfile H host hnp
        hostfile launch-agent machinefile map-by max-restarts max-vm-size N n npernode npersocket ompi-server
        output-filename output path personality ppr prefix rank-by report-events report-pid report-uri rf rankfile stdin
        timeout tune wd wdir x xml-file xterm display pset runtime-options rtos dvm-uri mem-limit tmpdir

        f hosts genvlist envlist envuser wdir ppn perhost rr iface rmk launcher launcher-exec bootstrap bootstrap-exec
        demux ranks-per-proc order-nodes topolib profile port-range usize outfile-pattern errfile-pattern
        configfile-args
        nodefile machine pmi-port branch-count bind-to map-by membind hostos localhost trace-pt gpu-subsets exitcode
        silent-abort-timeout

        depth cpu-bind mem-bind gpu-bind cpus-per-rank procs-per-node mem-limit startup-timeout network sstartup
        pmi pmi-version hostlist exclude-hosts ntasks rank-list soft umask
    """),
    flags=option_names("""
        allow-run-as-root bind-to-core bind-to-socket bycore bynode byslot bysocket continuous debug debug-daemons
        debug-daemons-file disable-recovery display-allocation display-devel-allocation display-devel-map
        display-diffable-map display-map display-topo do-not-resolve enable-instant-on-support enable-recovery
        get-stack-traces index-argv-by-rank leave-session-attached merge-stderr-to-stdout nolocal nooversubscribe
        noprefix novm output-proctable oversubscribe pernode q quiet report-bindings report-child-jobs-separately
        report-state-on-timeout set-cwd-to-session-dir show-progress tag-output timestamp-output use-hwthread-cpus
        use-regexp v verbose xml l prepend-rank genvall genvnone envall envnone enable-x disable-x info-all
        disable-auto-cleanup disable-hostname-propagation skip-launch-node nolocal label line-buffer no-transfer
        no-abort-on-failure abort-on-failure print-rank-map print-all-exitcodes s-all exclusive no-vni
    """),
    left_alone=option_names(
        "app configfile s preload-binary tv dvm do-not-launch gdb gtool gtoolfile p4pg spmd debug-devel"
    ),
    no_launch=option_names("h help V version info build-info"),
    two_valued=option_names("mca gmca pmixmca prtemca omca genv"),
)
"""Without dashes: these launchers take most options with one dash or two."""

HOROVODRUN = Syntax(
    valued=option_names("""
        -np --num-proc -p --ssh-port -i --ssh-identity-file --start-timeout --network-interfaces --network-interface
        --output-filename --config-file --hosts -H -hostfile --hostfile --fusion-threshold-mb --cycle-time-ms
        --cache-capacity --autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample
        --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np --max-np --min-num-proc
        --max-num-proc --slots-per-host --slots --elastic-timeout --reset-limit --cooldown-range --host-discovery-script
        --blacklist-cooldown-range --timeline-filename --stall-check-warning-time-seconds
        --stall-check-shutdown-time-seconds --log-level --mpi-args --gloo-timeout-seconds --binding-args
        --num-nccl-streams --thread-affinity --prefix-timestamp --prefix-output-with-timestamp-format --run-func
    """),
    flags=option_names("""
        --disable-cache --verbose --no-hierarchical-allreduce --hierarchical-allreduce --no-hierarchical-allgather
        --hierarchical-allgather --autotune --no-autotune --timeline-mark-cycles --no-timeline-mark-cycles
        --no-stall-check --stall-check --log-with-timestamp --log-hide-timestamp --log-without-timestamp --tcp --gloo
        --mpi --jsrun --prefix-output-with-timestamp --nics --disable-cache-response
    """),
    left_alone=option_names("--jsrun"),
    no_launch=option_names("-h --help -v --version -cb --check-build"),
)

PBSDSH = Syntax(valued=option_names("-c -n"), flags=option_names("-s -v -o"), no_launch=option_names("-h --version"))
PBS_TMRSH = Syntax(valued=option_names("-l"), flags=option_names("-n"), no_launch=option_names("--version"))
DAEMONS = ("orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy", "mpispawn")
"""Programs by which MPI's launchers start ranks on other nodes: they are no ranks, whoever starts them."""

OPEN_MPI_NAMES = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
PYTHON_FLAGS = "bBdEiIOPqRsSuvVx"
HONOUR_NO_PYTHON = ("pdsh", "openmpi", "mpich", "impi", "mvapich")
"""Values of deepspeed's `--launcher`. With another value deepspeed calls srun with Python; that srun is the launch."""


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
    """The line `name argv…` at the point where a rank program belongs.

    Raises NotUnderstoodError or NoLaunchError.
    """
    words = list(argv)
    return _SPLITTERS[name](words) if name in LAUNCHERS else _python(words)


LAUNCHERS = ("srun", "torchrun", *OPEN_MPI_NAMES, "horovodrun", "accelerate", "deepspeed", "pbsdsh", "pbs_tmrsh")

REQUEUES = "scontrol"
"""Requeues the script's own job. A script that prints the status has not handled that the requeue was refused."""


def _python(words: List[str]) -> LaunchLine:
    index = python_module(words)
    if index is None:
        raise NoLaunchError
    module = words[index][2:] if words[index] != "-m" else words[index + 1]
    begin = index + (1 if words[index] != "-m" else 2)
    inner = _SPLITTERS.get(module, _SPLITTERS[MODULES[module]])(words[begin:])
    return inner._replace(options=words[:begin] + inner.options)


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
        elif word.startswith(("-X", "-W")) or (word[:1] == "-" and word[1:] and not word[1:].strip(PYTHON_FLAGS)):
            index += 1
        else:
            return None
    return None


def _srun(words: List[str]) -> LaunchLine:
    if ":" in words:
        raise NotUnderstoodError("several programs in one step")
    options = parse_getopt(SRUN, words)
    return _before_program(words, len(options.words), "srun")._replace(job=options.values.get("--jobid", ""))


def _mpirun(words: List[str]) -> LaunchLine:
    if ":" in words:
        raise NotUnderstoodError("several programs in one launch")
    return _before_program(words, len(parse_mpi(MPIRUN, words).words), "mpirun")


def _horovodrun(words: List[str]) -> LaunchLine:
    return _before_program(words, len(parse_argparse(HOROVODRUN, words).words), "horovodrun")


def _pbsdsh(words: List[str]) -> LaunchLine:
    line = _before_program(words, len(parse_getopt(PBSDSH, words).words), names.HIDES_FAILURES)
    return line._replace(is_detached=True)


def _pbs_tmrsh(words: List[str]) -> LaunchLine:
    index = len(parse_getopt(PBS_TMRSH, words).words) + 1  # after the host
    index += len(parse_getopt(PBS_TMRSH, words[index:]).words)
    if any(daemon in word for word in words[index:] for daemon in DAEMONS):  # a line for the shell
        raise NoLaunchError
    line = _before_program(words, index, "pbs_tmrsh")
    return line._replace(is_detached=True)


def _before_program(words: List[str], index: int, kind: str) -> LaunchLine:
    if words[index : index + 1] == ["--"]:
        index += 1
    program = words[index:]
    if not program or any(word.rpartition("/")[2] in DAEMONS for word in program):
        raise NoLaunchError
    return LaunchLine(words[:index], program, kind)


def _torchrun(words: List[str]) -> LaunchLine:
    return _of_python(TORCHRUN, words, "--no-python", "torchrun", adds_local_rank=False)


def _torch_launch(words: List[str]) -> LaunchLine:
    values = parse_argparse(TORCHRUN, words).values
    return _of_python(TORCHRUN, words, "--no-python", "torchrun", adds_local_rank="--use-env" not in values)


def _accelerate(words: List[str]) -> LaunchLine:
    if words[:1] != ["launch"]:
        raise NoLaunchError
    inner = _accelerate_launch(words[1:])
    return inner._replace(options=["launch", *inner.options])


def _accelerate_launch(words: List[str]) -> LaunchLine:
    return _of_python(ACCELERATE, words, "--no_python", "accelerate", adds_local_rank=False)


def _deepspeed(words: List[str]) -> LaunchLine:
    values = parse_argparse(DEEPSPEED, words).values
    if values.get("--launcher", "pdsh").lower() not in HONOUR_NO_PYTHON:
        raise NoLaunchError
    return _of_python(DEEPSPEED, words, "--no_python", "deepspeed", adds_local_rank="--no-local-rank" not in values)


def _of_python(syntax: Syntax, words: List[str], no_python: str, kind: str, *, adds_local_rank: bool) -> LaunchLine:
    """For launchers that run a Python script, a module, or with `no_python` any program."""
    options = parse_argparse(syntax, words)
    program = words[len(options.words) :]
    if not program:
        raise NoLaunchError
    begin = [word for word, name in options.words if name not in ("-m", "--module")]
    if "--no-python" in options.values:
        index = 1
    else:
        is_module = "-m" in options.values or "--module" in options.values
        program = [INTERPRETER, "-u", *(["-m"] if is_module else []), *program]
        index = 4 if is_module else 3
        begin.append(no_python)
    return LaunchLine(begin, program, kind, local_rank_index=index if adds_local_rank else None)


_SPLITTERS: Dict[str, Callable[[List[str]], LaunchLine]] = {
    "srun": _srun,
    "torchrun": _torchrun,
    "torch.distributed.launch": _torch_launch,
    "accelerate": _accelerate,
    "accelerate.commands.launch": _accelerate_launch,
    "deepspeed": _deepspeed,
    "horovodrun": _horovodrun,
    "pbsdsh": _pbsdsh,
    "pbs_tmrsh": _pbs_tmrsh,
    **dict.fromkeys(OPEN_MPI_NAMES, _mpirun),
}


def parse_getopt(syntax: Syntax, words: Sequence[str]) -> ParsedOptions:
    """As getopt_long with `+` does, without abbreviations: `-n8`, `-lu`, `--ntasks 8`, `--ntasks=8`."""
    options = ParsedOptions({}, [])
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] not in ("-", "--"):
        word = words[index]
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            takes_next = name in syntax.valued and not equals
        else:
            name, value, takes_next = _short(syntax, word, options)
        _admit(syntax, name, word)
        index = _store(options, words, index, name, value=value, takes_next=takes_next)
    return options


def _short(syntax: Syntax, word: str, options: ParsedOptions) -> Tuple[str, str, bool]:
    """The last option of `-lun8`, its attached value, and whether the next word is its value."""
    for place, letter in enumerate(word[1:], 1):
        name, rest = f"-{letter}", word[place + 1 :]
        if name in syntax.valued:
            return name, rest, not rest
        _admit(syntax, name, word)
        options.values[name] = ""
        if rest.isdigit():  # an optional value, `-K1`
            return name, rest, False
    return name, "", False


def parse_argparse(syntax: Syntax, words: Sequence[str]) -> ParsedOptions:
    """As argparse does, with unique abbreviations: `--nproc_per_node=8`, `--nproc-per 8`, `-m`."""
    options = ParsedOptions({}, [])
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] != "-":
        word = words[index]
        written, equals, value = word.partition("=")
        name = written if not written.startswith("--") else "--" + written[2:].replace("_", "-")
        if name not in syntax.known and name.startswith("--") and len(name) > len("--"):
            full = [known for known in syntax.known if known.startswith(name)]
            name = full[0] if len(full) == 1 else name
        _admit(syntax, name, word)
        index = _store(options, words, index, name, value=value, takes_next=name in syntax.valued and not equals)
    return options


def parse_mpi(syntax: Syntax, words: Sequence[str]) -> ParsedOptions:
    """As Open MPI, MPICH and PALS do: one dash or two, and a value in the next word or after `=`."""
    options = ParsedOptions({}, [])
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index].strip("-"):
        word = words[index]
        written, equals, value = word.partition("=")
        name = written.lstrip("-")
        following = words[index + 1] if index + 1 < len(words) else ""
        if name in ("env", "e") and (equals or "=" in following):  # PALS; MPICH has `-env NAME VALUE`
            count = 0 if equals else 1
        elif name == "env":
            count = 2
        elif name == "d" and following.isdigit():  # the depth of PALS; a flag of Open MPI
            count = 1
        else:
            _admit(syntax, name, word)
            count = 2 if name in syntax.two_valued else int(name in syntax.valued and not equals)
        for offset in range(count + 1):
            if index + offset >= len(words):
                raise NotUnderstoodError(f"`{word}` without a value")
            options.words.append((words[index + offset], "" if offset else name))
        options.values[name] = value
        index += count + 1
    return options


def _admit(syntax: Syntax, name: str, word: str) -> None:
    if name in syntax.no_launch:
        raise NoLaunchError
    if name in syntax.left_alone:
        raise NotUnderstoodError(f"option `{word}`")
    if name not in syntax.valued and name not in syntax.flags and name not in syntax.two_valued:
        raise NotUnderstoodError(f"unknown option `{word}`")


def _store(options: ParsedOptions, words: Sequence[str], index: int, name: str, *, value: str, takes_next: bool) -> int:
    """Returns the index of the next option."""
    options.words.append((words[index], name))
    if takes_next:
        if index + 1 >= len(words):
            raise NotUnderstoodError(f"`{words[index]}` without a value")
        value = words[index + 1]
        options.words.append((value, ""))
    options.values[name] = value
    return index + (2 if takes_next else 1)
