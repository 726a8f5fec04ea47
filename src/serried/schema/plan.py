"""The plan: one experiment on one cluster with nothing left to decide. Immutable, JSON, printable.

The script, the agents and every reader of runs work from the plan, as `plan.json` has it. Each part that users set
declares its settings here, with key and help; `config` reads, checks and documents them by these declarations.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional, TypeVar, Union

from serried.base import NamedTuple
from serried.schema import SCHEMA, codec, names
from serried.schema.layout import RunDirectory, run_directory
from serried.schema.successor_commands import part_of, token_of, tokens_of

T = TypeVar("T")


class Key(NamedTuple):
    """How users set a field of a table."""

    kind: Any
    """A kind of values in `config.values`, or its name there."""
    help: str
    default: Optional[str] = None
    """The value of a key that is not set, in words for the reader."""
    value: Any = None
    """The value of the field then."""
    name: str = ""
    """Its name in a file; by default the field's name without its unit."""
    alias: Optional[str] = None
    """Another name for the key."""

    @property
    def is_optional(self) -> bool:
        """An empty text is valid too: it removes the value of a weaker source."""
        return self.value in (None, "", ())


KEYS: dict[type, dict[str, Key]] = {}
"""The keys of each table, by field."""


def setting(
    kind: Any,
    help_: str,
    default: Optional[str] = None,
    *,
    value: Any = None,
    name: str = "",
    alias: Optional[str] = None,
) -> Any:
    """Declare a field that users set. See `Key`."""
    return Key(kind, help_, default, value, name, alias)


def settings(table: type[T]) -> type[T]:
    """Decorate a named tuple that has fields made by `setting`: their defaults are the keys' values from now on."""
    defaults = table._field_defaults  # type: ignore[attr-defined]
    KEYS[table] = {field: key for field, key in defaults.items() if isinstance(key, Key)}
    defaults.update({field: key.value for field, key in KEYS[table].items()})
    return table


class Build(NamedTuple):
    """An environment that Serried builds, and keeps under a hash of its inputs."""

    kind: str
    """`venv` or `conda`."""
    source: str = ""
    """The file that lists its content, absolute; empty for the project's own files."""
    python: Optional[str] = None
    torch: Optional[str] = None
    where: str = "here"
    """`here`, `job` or `gpu-job`."""


@settings
class Environment(NamedTuple):
    """The environment of ranks. It has the names of secrets, never their values."""

    modules: tuple[str, ...] = setting(
        "TEXTS",
        "Modules to load, in this order. `use DIR` adds a folder of modulefiles, `unload NAME` unloads a module.",
        value=(),
    )
    module_purge: bool = setting("BOOLEAN", "Unload all modules before `modules` are loaded.", "false", value=False)
    setup: str = setting(
        "LINES",
        "Lines of bash to run on each node before its ranks start, in their folder. Ranks inherit exports and limits.",
        value="",
    )
    check: Optional[str] = setting(
        "LINES",
        "Python code that `submit` runs in the environment first: `import torch`. `false` skips every check.",
        "activate the environment",
    )
    """None only activates the environment; "" skips that too."""
    env: Mapping[str, str] = setting("VARIABLES", "Variables to set. Merged by name.", value={})
    secrets: tuple[str, ...] = setting(
        "NAMES",
        "Names of secret variables. Their values are read at submit and appear in no plan, script or log.",
        value=(),
    )
    env_file_path: Optional[str] = setting(
        "TEXT", "File of `NAME=value` lines. The values are secrets.", name="env_file"
    )
    """Absolute once resolved."""
    inherit: Union[str, tuple[str, ...]] = setting(
        "INHERIT", "Variables to inherit from the submitting shell.", "`all`", value="all"
    )
    env_file: tuple[str, ...] = ()
    """The names in the env_file, whose values are secrets too."""
    venv: Optional[str] = None
    """The virtual environment's folder, absolute; None for the inherited environment."""
    conda: Optional[str] = None
    """The folder of the conda environment; a name until Serried has searched for it."""
    build: Optional[Build] = None
    """`venv` or `conda`, if Serried builds them; both are None until then."""


@settings
class Container(NamedTuple):
    """The container of ranks. The agents stay outside, except with pyxis."""

    image: str = setting(
        "IMAGE",
        "Image file or folder, definition (`.def`) or `docker://…`, from the project's folder. May contain variables.",
        "no container",
        value="",
    )
    """A file or a folder is absolute once resolved."""
    runtime: str = setting("RUNTIME", "Container runtime.", "the first one that is installed", value="")
    binds: tuple[str, ...] = setting(
        "BINDS",
        "Host paths to mount; `/data` means `/data:/data`. May contain variables, also of the node (`$SLURM_TMPDIR`).",
        value=(),
    )
    """In the form of `schema.binds`: absolute, or on the node's own disk."""
    writable: bool = setting(
        "BOOLEAN",
        "Let ranks write to the whole container. The changes are lost at the end (`--writable-tmpfs`).",
        "false",
        value=False,
    )
    options: tuple[str, ...] = setting("TEXTS", "Further options of the runtime: `--nvccli`, `--fakeroot`.", value=())
    contained: bool = setting(
        "BOOLEAN", "Hide the host: a separate home and `/tmp`, and only the job's variables.", "false", value=False
    )
    local: Optional[bool] = setting(
        "BOOLEAN", "Copy an image file to each node's own disk first, once.", "true with a `local_disk`"
    )
    requirements: str = setting(
        "TEXT", "A file of requirements that `serried env build` installs on top of `image`.", value=""
    )
    made_from: str = ""
    """The definition or reference that Serried built the image from."""


@settings
class Limit(NamedTuple):
    warn_before_seconds: int = setting(
        "DURATION", "Time between the stop notice and the time limit; at most a quarter of the limit.", "60s", value=60
    )
    grace_seconds: int = setting("DURATION", "Time between TERM and KILL.", "30s", value=30)
    output_timeout_seconds: Optional[int] = setting("DURATION_OR_OFF", "Fail if no rank prints for this time.", "off")
    restarts: int = setting("COUNT_OR_NONE", "How many further attempts are allowed.", "0", value=0)
    """In a plan, with those that `total_time` needs."""
    rounds: int = setting(
        "COUNT_OR_NONE",
        "How often ranks may start again without progress, within an attempt, after a failure that may pass.",
        "0",
        value=0,
    )
    total_time_seconds: Optional[int] = setting(
        "DURATION_OR_OFF",
        "Time of the whole training: as many attempts as that takes, and `restarts` more.",
        "off",
    )
    continue_by: str = setting(
        "FORM",
        "How the run gets its next attempt: see [time limits](time-limits.md).",
        "the cluster's, else `requeue`",
        name="continue",
        value=names.REQUEUE,
    )
    notify: Optional[str] = setting("SIGNAL", "Signal that asks ranks to save and exit: `USR1`, `TERM` …", "off")
    resubmit: Optional[str] = setting(
        "RESUBMIT", "After a failed preflight, submit the run once more without the nodes that failed.", "off"
    )


@settings
class Launch(NamedTuple):
    """The launcher of the ranks. Each in `agent/launchers/kinds.py` starts them through `agent rank`."""

    kind: str = setting(
        "LAUNCHER",
        "Launcher of the ranks.",
        "`agent`; `single` for one rank without a GPU",
        value="",
    )
    """Never empty in a plan."""
    max_restarts: int = setting(
        "COUNT_OR_NONE", "How often torchrun restarts failed ranks within one attempt.", "0", value=0
    )
    options: tuple[str, ...] = setting(
        "TEXTS", "Further options of the launcher, with `{nodes}`, `{ranks}`, `{gpus}` and `{world_size}`.", value=()
    )


@settings
class Notify(NamedTuple):
    command: tuple[str, ...] = setting(
        "COMMAND",
        "Command to run, without a shell.",
        value=(),
    )
    webhook: Optional[str] = setting("WEBHOOK", "Name of the secret variable with the webhook's address.")
    on: tuple[str, ...] = setting(
        "EVENTS",
        "Events: `start`, `finish`, `fail`, `stall`, `anomaly`.",
        "`finish` and `fail`",
        value=("finish", "fail"),
    )


@settings
class Track(NamedTuple):
    """Trackers of experiments, which get the values of `run.log`."""

    sinks: tuple[str, ...] = setting("SINKS", "Trackers that get the values of `run.log`.", value=())
    project: str = setting("TEXT", "Project in wandb, experiment in MLflow.", "the project's name", value="")
    """Never empty in a plan."""
    group: str = setting("TEXT", "Group of the run in wandb.", "the run's id for an array", value="")
    mode: str = setting(
        "TRACK_MODE",
        "How to reach the servers of wandb and MLflow.",
        "`auto`: `online` if they can be reached",
        value=names.TRACK_AUTO,
    )
    every_process: bool = setting(
        "BOOLEAN", "Make each rank a run of its own, instead of rank 0 alone.", "false", value=False
    )


@settings
class Sampling(NamedTuple):
    """What agents measure while ranks run."""

    every_seconds: Optional[int] = setting(
        "DURATION_OR_OFF",
        "Interval between two measurements.",
        "5s",
        value=5,
    )


@settings
class ReportSettings(NamedTuple):
    mute: tuple[str, ...] = setting(
        "TEXTS", "Rules whose notes `serried report` leaves out: see [rules](rules.md).", "none", value=()
    )


@settings
class ReportedMetric(NamedTuple):
    """A metric of a program that does not log it by `serried.train`."""

    name: str = setting("TEXT", "Name of the metric.", "`metric`", value="metric")
    source: str = setting(
        "METRIC_SOURCE",
        "Where the program reports its step and metrics.",
        "the file of `run.log`",
        name="from",
        value="",
    )

    def source_of(self, metric: str) -> str:
        """Where the program reports `metric`; empty if this source has no such value."""
        from serried.schema import printed_metric  # few commands ask

        name = "" if self.name == ReportedMetric().name else self.name
        return self.source if self.source and printed_metric.has(self.source, name, metric) else ""


class SideCommand(NamedTuple):
    """A command that runs beside the ranks of a node, and never decides how the run ends."""

    command: tuple[str, ...]
    """With placeholders. With `shell` a single word: a line for bash."""
    shell: bool = True
    on: str = names.EVERY_NODE
    """`every` node or the `first`."""


class Staged(NamedTuple):
    """A file, folder or archive that each node copies to its own disk before ranks start."""

    source: str
    """Absolute."""
    to: str
    """Its path in the ranks' data folder."""
    unpack: str = ""
    """The kind of an archive that becomes a folder: `tar`, `tar.gz`, `tar.zst`, `zip` or `squashfs`."""
    bytes: Optional[int] = None
    """As counted at submit; None if that took too long."""
    files: Optional[int] = None


@settings
class Data(NamedTuple):
    """The data that goes to the nodes, and the results that come back."""

    stage: tuple[Staged, ...] = setting(
        "ITEMS", "Files, folders and archives (unpacked) to copy to each node's disk before ranks start.", value=()
    )
    require: tuple[str, ...] = setting(
        "TEXTS", "Paths that must exist on every node, checked before ranks start.", value=()
    )
    """Absolute once resolved."""
    results: tuple[str, ...] = setting(
        "RESULTS",
        "Names and patterns of results to copy back. `$SERRIED_RESULTS_DIR` is then on the node's disk.",
        value=(),
    )
    results_every_seconds: int = setting("DURATION", "Interval between two copies while ranks run.", "5m", value=300)
    verify: str = setting(
        "VERIFY",
        "How to compare a copy with its source: by sizes and times, or by checksums.",
        "`times`",
        value="times",
    )


@settings
class Sync(NamedTuple):
    """Checkpoints that a program without `serried.train` writes. Agents copy them to the run's own."""

    watch: tuple[str, ...] = setting(
        "WATCHED", "Patterns of checkpoints that the program writes. Complete ones are copied while it runs.", value=()
    )
    sync_every_seconds: int = setting("DURATION", "Interval between two searches for new checkpoints.", "30s", value=30)
    keep: int = setting("COUNT", "Number of copied checkpoints that stay.", "3", value=3)
    bandwidth: Optional[int] = setting("BYTES", "How much data may be copied per second while ranks run.", "no limit")
    keep_local: Optional[int] = setting(
        "COUNT",
        "Number of checkpoints that stay on the node's disk. Older ones are deleted.",
        "all",
    )


class Dialect(NamedTuple):
    """The forms of a scheduler's job ids and answers, for agents that know no scheduler."""

    task: tuple[str, str] = ("", "")
    """A pattern and its replacement, which turn the id of an array job into that of a task; `{}` is the index."""
    awaited: tuple[str, str] = ("", "")
    """The same for a job that another depends on."""
    state_query: str = ""
    """Bash that prints the state of the job `$1` as one word: nothing for an unknown job, and a status other than 0 if
    the scheduler does not answer. Empty: none of its jobs outlives their agents."""
    job_end: str = ""
    """Bash that ends the job `$1`, or requeues it if `$2` is not empty, after its first node was lost."""
    release: str = ""
    """Bash that gives the hosts `$@` back to the scheduler, as its job would wait for them when it ends."""
    job_variables: tuple[str, ...] = ()
    """Variables that only job.sh has, the job's id first."""
    index_variable: str = ""
    """The variable in which programs look for the index of their task, unless every process of the job has it."""
    task_prefix: str = ""
    """The prefix of variables that it sets for each process that it starts."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of the variables of its jobs and of its commands. A job that one of its jobs submits inherits none."""
    selectors: tuple[str, ...] = ()
    """Variables that select one of its clusters. Jobs inherit them, whatever their prefix."""


@settings
class Site(NamedTuple):
    """The facts about the cluster that the script and the agents need."""

    name: str = ""
    scheduler: str = ""
    docs: Optional[str] = setting("TEXT", "Address of its documentation, printed in errors about limits and accounts.")
    contact: Optional[str] = setting("TEXT", "Address for questions, printed in the same errors.")
    root: str = setting(
        "TEXT",
        "Folder of run directories. May contain variables.",
        "`$SCRATCH/serried`, `$PSCRATCH/serried`, `/scratch/$USER/serried` or `$HOME/serried`; "
        "`$XDG_DATA_HOME/serried` on `local`",
        value="",
    )
    """Absolute once resolved."""
    python: Optional[str] = setting("TEXT", "Python 3.9 or later for the agent.", "one on the node")
    gpu_option: str = setting("GPU_OPTION", "Slurm's option to request GPUs.", "`gres`", value="gres")
    kill_wait_seconds: int = setting("DURATION", "Time between the scheduler's TERM and KILL.", "30s", value=30)
    local_disk: Optional[str] = setting("TEXT", "Scratch folder on each node. May contain the node's variables.")
    local_disk_size_bytes: Optional[int] = setting("BYTES", "How much data a job may keep there.", "not checked")
    local_disk_files: Optional[int] = setting("COUNT", "How many files a job may keep there.", "not checked")
    data_cache_bytes: int = setting(
        "BYTES_OR_NONE", "How much staged data may stay on a node's disk for later jobs.", "none", value=0
    )
    data_transfer: str = setting(
        "TRANSFER",
        "How staged data reaches several nodes: read once and passed on, or read by each node.",
        "`chain`",
        value="chain",
    )
    gpu_resource: str = setting(
        "TEXT", "The site's PBS resource for the type of a GPU, used for `gpu_type`.", "`gpu_type`", value="gpu_type"
    )
    hides_gpus: bool = setting(
        "BOOLEAN",
        "PBS hides the GPUs of other jobs. Otherwise jobs with GPUs take whole nodes.",
        "false",
        value=False,
    )
    inside: str = ""
    """The scheduler of the job in which `serried run` was typed; `scheduler` is then this machine's."""
    scratch: str = ""
    """The folder for users' data that compute nodes see; empty without one."""
    launcher: str = setting(
        "TEXT",
        "Starts the agents of a PBS job: `pbsdsh`, `pbs_tmrsh` or a line of bash. See [PBS](pbs.md#the-qsub-command).",
        "`pbsdsh` on `pbs`; `pbs_tmrsh` with `nodes`",
        value="",
    )
    private: str = setting(
        "TEXT",
        "PBS: folder for a private file with the job's environment. Compute nodes must see it.",
        "`private/` in the run directory",
        value="",
    )
    """Absolute once resolved."""
    is_this_machine: bool = False
    """Its jobs share this machine with the user, outside of any scheduler."""
    dialect: Dialect = Dialect()

    @property
    def support(self) -> Optional[str]:
        """`ask help@site, or see https://…`, as far as the profile has them."""
        ways = [f"ask {self.contact}" if self.contact else "", f"see {self.docs}" if self.docs else ""]
        return ", or ".join(way for way in ways if way) or None


ALL = 0
"""Memory: all that a node has."""


class Allocation(NamedTuple):
    """One Slurm task per node owns everything on that node."""

    nodes: int
    ranks: int
    """Ranks per node."""
    gpus: int
    """GPUs per node; 0 on CPU clusters."""
    cpus: int
    """CPUs per node."""
    memory_mb: Optional[int]
    """Memory per node in MiB; 0 for all, None for the cluster's default."""
    time_seconds: Optional[int]
    """Time limit of a job; None if Serried sets none."""
    gpu_type: Optional[str] = None
    account: Optional[str] = None
    partition: Optional[str] = None
    qos: Optional[str] = None
    reservation: Optional[str] = None
    constraint: tuple[str, ...] = ()
    """Features that every node must have: joined by `&`."""
    licenses: tuple[str, ...] = ()
    exclusive: bool = False
    comment: Optional[str] = None
    mail_user: Optional[str] = None
    mail_type: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Further options for the scheduler's submit command, unchanged."""
    hosts: tuple[str, ...] = ()
    """The nodes that the job must have; empty for any."""
    spare_nodes: int = 0
    """Further nodes of the job, in addition to `nodes`: each takes the place of a lost one."""

    @property
    def job_nodes(self) -> int:
        """The nodes of the job, with the spare ones."""
        return self.nodes + self.spare_nodes


class Source(NamedTuple):
    directory: str
    """The project's folder on the submitting side, absolute."""
    workdir: str = "."
    """The ranks' working directory, relative to the project's folder."""
    snapshot: bool = True
    """False: run in `directory` itself."""
    archive: Optional[str] = None
    """Path of the tar to unpack."""
    tree_per_task: bool = False
    """Each task of an array unpacks its own working tree. Otherwise all tasks share one."""
    links: tuple[str, ...] = ()
    """Top-level entries of the project that the unpacked tree links to."""
    python_path: tuple[str, ...] = ()
    """Folders (relative to the tree) put before PYTHONPATH: editable installs redirected to the snapshot."""


class Array(NamedTuple):
    indices: tuple[int, ...]
    parallel: Optional[int] = None
    """Most tasks that run at once; None for the scheduler's default."""
    each: bool = False
    """Task I runs line I of commands.json. Otherwise all tasks run the plan's command."""
    repeat: Optional[int] = None
    """The number of consecutive tasks that repeat one command, each with the next seed; None without repeats."""
    offsets: tuple[int, ...] = ()
    """If one job cannot hold the array: for each of its jobs, the difference between a task and the scheduler's index,
    which begins at 0. Empty: one job, whose indices are the tasks."""
    draws: bool = False
    """A job runs further tasks after its own, whose jobs still wait, as long as its time allows: see
    `agent/trials/draw.py`."""


class Search(NamedTuple):
    """A search by Optuna, for the agents of the trials: see `agent/trials/search.py`."""

    method: str
    """`bayes`; `grid` or `random` if it only ends trials early."""
    metric: str
    source: str
    goal: str
    pruner: Optional[Mapping[str, Any]]
    """`type` (`hyperband` or `median`) and the arguments of that pruner; None if no trial ends early."""
    space: Mapping[str, Mapping[str, Any]]
    """By parameter: `value`; `choices`; or `low` and `high`, with `int`, `log` and `q`. Empty without `bayes`."""
    journal: str = ""
    """Optuna's journal, in the directory of the sweep's first run."""
    pythons: tuple[str, ...] = ()
    """Those that have Optuna, the first choice first."""


class Sweep(NamedTuple):
    """The sweep that a run belongs to. Each task is a trial; trials.json has the parameters."""

    first: str
    """The sweep's first run, whose id is the sweep's. Later runs repeat trials or add some."""
    parameters: tuple[str, ...]
    """By dotted name."""
    metric: str = ""
    """The logged value that orders the trials; empty without one."""
    goal: str = "minimize"
    """`minimize` or `maximize`."""
    source: str = ""
    """Where the programs report the metric, as `schema.printed_metric` reads it; empty if they log it."""
    seeds: int = 1
    """The number of consecutive trials that differ in their seed alone."""
    definition: Mapping[str, Any] = {}
    """The keys of `[sweeps.NAME]` that gave the trials, from which further draws follow."""
    description: str = ""
    """The parameters and their values in words: `lr (2 values) x wd (3 values)`."""
    search: Optional[Search] = None
    """What gives trials their parameters when they start, or ends them early; None if neither."""
    service: str = ""
    """`ENTITY/PROJECT/ID` of a sweep at W&B, whose agents start the trials; empty for other sweeps."""


class UserScript(NamedTuple):
    """A job script of the user, which runs unmodified on the first node in place of ranks."""

    path: str
    """The file as of submit, absolute. The run directory has a copy."""
    interpreter: tuple[str, ...]
    """The program of the `#!` line, and at most one argument."""
    options: tuple[str, ...] = ()
    """Options for the scheduler's submit command from the script's directives, unchanged."""
    replaced: tuple[str, ...] = ()
    """Options of directives that settings of the user replace."""
    keys: tuple[str, ...] = ()
    """Keys of `resources` that the user set in place of directives."""
    title: str = ""
    """The job's name by `--name` or its directives; empty if there is none."""
    log: str = ""
    """Where the user expects its output, in the escapes of the scheduler; a link leads to the log."""
    errors: str = ""
    """Where the user expects its stderr, if that is another file; a link leads to the same log."""
    input: str = ""
    """The file that it reads as standard input."""
    dependency: str = ""
    """Jobs that it waits for, in the scheduler's words."""
    notice_to: str = ""
    """Which get the signal `limit.notify`: `script`, `ranks` that it starts, or, if empty, both."""
    has_login: bool = False
    """Its environment begins as that of a login shell."""
    appends: bool = False
    """The logs of its steps are kept when they exist, by its directives."""
    dialect: str = ""
    """The scheduler of its directives; empty without directives."""
    umask: int = 0o077
    """Of the submitting shell, or by its directives. With `has_login` the user's profile may change it."""
    folder: str = ""
    """The folder that it was submitted from, absolute."""

    @property
    def job_name(self) -> str:
        """The name of its job with the scheduler's own command."""
        return self.title or os.path.basename(self.path)  # noqa: PTH119

    @property
    def is_singleton(self) -> bool:
        """Whether it waits for its user's earlier jobs of the same name."""
        return "singleton" in self.dependency.replace("?", ",").split(",")


class After(NamedTuple):
    """A run, or a task of a run, that this run depends on."""

    run: str
    name: str
    directory: str
    """Its run directory, absolute."""
    condition: str = names.AFTER_OK
    """The end that it must have: `ok`, `any` or `notok`."""
    task: Optional[int] = None
    job: Optional[str] = None
    """Its first job, or all jobs of an array, with commas. None if the condition was met before this run was
    submitted."""

    def __str__(self) -> str:
        """`k3f9q2`, `k3f9q2/17:any`."""
        task = "" if self.task is None else f"/{self.task}"
        condition = "" if self.condition == names.AFTER_OK else f":{self.condition}"
        return f"{self.run}{task}{condition}"


class Resume(NamedTuple):
    """The checkpoint that a run starts from, until it has its own."""

    checkpoints: tuple[str, ...]
    """Absolute paths: one for each task of the array in order, or one for all. Empty for a task without."""
    run: Optional[str] = None
    """The run or the task (`k3f9q2/17`) that wrote them."""

    def __str__(self) -> str:
        if len(self.checkpoints) > 1:
            return f"{self.run}, each task from its own checkpoint"
        path = self.checkpoints[0]
        return f"{self.run}, {path.rpartition('/')[2]}" if self.run else path


class Plan(NamedTuple):
    run: str
    name: str
    """The name for users: `--name`, else the experiment's name."""
    project: str
    experiment: str
    created: str
    """UTC, ISO 8601."""
    command: tuple[str, ...]
    """The program and its arguments, with placeholders. With `shell` a single word: a line for bash."""
    site: Site
    allocation: Allocation
    source: Source
    shell: bool = False
    seed: int = 0
    debug: bool = False
    """NCCL and torch.distributed log more."""
    ranks_meet: bool = True
    """False: ranks are independent programs, and Serried does not warn if none connects to another."""
    preflight: bool = False
    """Whether ranks wait for the checks of their nodes, and start only if none finds a problem."""
    shares_logs: bool = False
    """The ranks of a node share a log, except rank 0, and only the first of them keeps its metrics."""
    config: Mapping[str, Any] = {}
    """The settings of the training, by dotted name, for `serried.train.config` and `{config.NAME}`."""
    environment: Environment = Environment()
    container: Optional[Container] = None
    data: Optional[Data] = None
    checkpoint: Optional[Sync] = None
    limit: Limit = Limit()
    launch: Launch = Launch("agent")
    script: Optional[UserScript] = None
    """In place of ranks; `command` is then the script's path as the user wrote it, and its arguments."""
    notify: Optional[Notify] = None
    track: Optional[Track] = None
    metric: Optional[ReportedMetric] = None
    sampling: Sampling = Sampling()
    report: ReportSettings = ReportSettings()
    beside: tuple[SideCommand, ...] = ()
    array: Optional[Array] = None
    sweep: Optional[Sweep] = None
    resume: Optional[Resume] = None
    after: tuple[After, ...] = ()
    """Dependencies: runs that must end first."""
    smoke: int = 0
    """The number of steps of a smoke test, after which a training saves, loads and exits; 0 for other runs."""
    rerun_of: Optional[str] = None
    """The run or the task whose plan this run repeats."""
    defaults: tuple[str, ...] = ()
    """Keys (`resources.cpus`) that have a default of Serried or of the cluster."""
    share: str = "user"
    """`user` (0700/0600) or `group` (0750/0640)."""
    schema: int = SCHEMA

    @property
    def directory(self) -> str:
        """The run directory, absolute."""
        return run_directory(self.site.root, self.project, self.experiment, self.run)

    @property
    def submitted_from(self) -> str:
        """The folder that a job script takes for the one it was submitted from: in a snapshot, the copy's."""
        folder = self.script.folder if self.script else self.source.directory
        inside = os.path.relpath(folder, self.source.directory)
        return os.path.normpath(f"{self.directory}/source/{inside}") if self.source.snapshot else folder

    @property
    def private(self) -> str:
        """The folder for the job's environment, if the scheduler would show it to other users; absolute."""
        return self.site.private or str(RunDirectory(Path(self.directory)).private)

    @property
    def world_size(self) -> int:
        """The number of ranks; 1 for a script."""
        return 1 if self.script else self.allocation.nodes * self.allocation.ranks

    @property
    def has_all_cpus(self) -> bool:
        """Its ranks share all CPUs of each node: the nodes are exclusive, and the user requested no number of CPUs."""
        return self.allocation.exclusive and "resources.cpus" in self.defaults

    @property
    def warn_before_seconds(self) -> int:
        """The time from the stop notice to the time limit; 0 without a limit."""
        return 0 if self.allocation.time_seconds is None else self.limit.warn_before_seconds

    @property
    def useful_seconds(self) -> Optional[int]:
        """The time after which ranks receive the stop notice; None without a limit."""
        limit = self.allocation.time_seconds
        if limit is None:
            return None
        copying = min(names.COPY_BACK_SECONDS, limit // 20) if self.copies_back else 0
        return limit - self.limit.warn_before_seconds - copying

    @property
    def result_patterns(self) -> tuple[str, ...]:
        """Names and patterns of the results that agents copy back."""
        return self.data.results if self.data else ()

    @property
    def watch_patterns(self) -> tuple[str, ...]:
        """Patterns of the program's checkpoints that agents copy to the run directory."""
        return self.checkpoint.watch if self.checkpoint else ()

    @property
    def staged_items(self) -> tuple[Staged, ...]:
        return self.data.stage if self.data else ()

    @property
    def copies_back(self) -> bool:
        """Agents copy files back, which takes time after the ranks have ended."""
        return bool(self.checkpoint or self.result_patterns)

    @property
    def may_requeue(self) -> bool:
        """The scheduler may run the job itself again."""
        return self.limit.restarts > 0 and self.limit.continue_by == names.REQUEUE

    @property
    def has_links(self) -> bool:
        """Further attempts are further jobs."""
        return self.limit.restarts > 0 and self.limit.continue_by != names.REQUEUE

    @property
    def may_exclude_nodes(self) -> bool:
        """A further job may be needed that excludes bad nodes."""
        return bool(self.limit.resubmit or (self.limit.rounds and self.limit.restarts))

    @property
    def offsets(self) -> tuple[int, ...]:
        """`Array.offsets`; empty without an array."""
        return self.array.offsets if self.array else ()

    @property
    def draws(self) -> bool:
        """A job of the array runs further trials after its own."""
        return self.array is not None and self.array.draws

    @property
    def is_in_parts(self) -> bool:
        return len(self.offsets) > 1

    @property
    def tokens(self) -> list[str]:
        return tokens_of(token_of(self.run, None, 1), self.offsets)

    def part(self, number: int) -> "Plan":
        """The plan of one of those jobs: its tasks, with the scheduler's indices."""
        if self.array is None or not self.array.offsets:
            return self
        offsets = self.array.offsets
        own = tuple(task - offsets[number] for task in self.array.indices if part_of(offsets, task) == number)
        return self._replace(array=self.array._replace(indices=own))

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = codec.to_json(self)
        return document

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Plan":
        """The plan that `to_json` wrote.

        Raises ValueError on one of another schema, and on anything else.
        """
        if value.get("schema") != SCHEMA:
            raise ValueError(f"this plan has schema {value.get('schema')}; this Serried reads {SCHEMA}")
        if _has_nul(value):  # a failing disk wrote it: no path and no argument can have one
            raise ValueError("this plan has a NUL")
        plan = codec.from_json(cls, value)
        if plan.resume is not None and not plan.resume.checkpoints:
            raise ValueError("resume.checkpoints: no checkpoint")
        return plan


def _has_nul(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_nul, value)) or any(map(_has_nul, value.values()))
    return "\0" in value if isinstance(value, str) else isinstance(value, list) and any(map(_has_nul, value))
