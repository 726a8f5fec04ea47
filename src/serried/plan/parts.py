"""The parts of a plan that users set. Each field that is a setting is declared here once, with its key and help.

`config` reads, checks and documents settings by these declarations, and the plan holds the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from serried.protocol import names


class KeySpec(NamedTuple):
    """How users set a field."""

    kind: str
    """The name in `config.values` of the kind of its values."""
    help: str
    default: str | None = None
    """The value of a key that is not set, in words for the reader."""
    key: str = ""
    """Its key in a file, if that is not the field's name."""


class Build(NamedTuple):
    """An environment that Serried builds, and keeps under a hash of its inputs."""

    kind: str
    """`venv` or `conda`."""
    source: str = ""
    """The file that lists its content, absolute; empty for the project's own files."""
    python: str | None = None
    torch: str | None = None
    where: str = "here"
    """`here`, `job` or `gpu-job`."""


class Environment(NamedTuple):
    """The environment of ranks. It has the names of secrets, never their values."""

    modules: Annotated[
        tuple[str, ...],
        KeySpec(
            "TEXTS",
            "Modules to load, in this order. `use DIR` adds a folder of modulefiles, `unload NAME` unloads a module.",
        ),
    ] = ()
    module_purge: Annotated[bool, KeySpec("BOOLEAN", "Unload all modules before `modules` are loaded.", "false")] = (
        False
    )
    setup: Annotated[
        str,
        KeySpec(
            "LINES",
            "Lines of bash to run on each node before its ranks start, in their folder. Ranks inherit exports and "
            "limits.",
        ),
    ] = ""
    check: Annotated[
        str | None,
        KeySpec(
            "LINES",
            "Python code that `submit` runs in the environment first: `import torch`. `false` skips every check.",
            "activate the environment",
        ),
    ] = None
    """None only activates the environment; "" skips that too."""
    env: Annotated[Mapping[str, str], KeySpec("VARIABLES", "Variables to set. Merged by name.")] = {}
    secrets: Annotated[
        tuple[str, ...],
        KeySpec(
            "NAMES", "Names of secret variables. Their values are read at submit and appear in no file of Serried."
        ),
    ] = ()
    env_file_path: Annotated[
        str | None, KeySpec("TEXT", "File of `NAME=value` lines. The values are secrets.", key="env_file")
    ] = None
    """Absolute once resolved."""
    inherit: Annotated[
        str | tuple[str, ...], KeySpec("INHERIT", "Variables to inherit from the submitting shell.", "`all`")
    ] = "all"
    env_file: tuple[str, ...] = ()
    """The names in the env_file, whose values are secrets too."""
    venv: str | None = None
    """The virtual environment's folder, absolute; None for the inherited environment."""
    conda: str | None = None
    """The folder of the conda environment; a name until Serried has searched for it."""
    build: Build | None = None
    """`venv` or `conda`, if Serried builds them; both are None until then."""


class Container(NamedTuple):
    """The container of ranks. The agents stay outside, except with pyxis."""

    image: Annotated[
        str,
        KeySpec(
            "IMAGE",
            "Image file or folder, definition (`.def`) or `docker://…`, relative to the project. May contain "
            "variables.",
            "no container",
        ),
    ] = ""
    """A file or a folder is absolute once resolved."""
    runtime: Annotated[str, KeySpec("RUNTIME", "Container runtime.", "the first one that is installed")] = ""
    binds: Annotated[
        tuple[str, ...],
        KeySpec(
            "BINDS",
            "Host paths to mount; `/data` means `/data:/data`. May contain variables, also of the node "
            "(`$SLURM_TMPDIR`).",
        ),
    ] = ()
    """In the form of `protocol.binds`: absolute, or on the node's own disk."""
    writable: Annotated[
        bool,
        KeySpec(
            "BOOLEAN",
            "Let ranks write to the whole container. The changes are lost at the end (`--writable-tmpfs`).",
            "false",
        ),
    ] = False
    options: Annotated[
        tuple[str, ...],
        KeySpec("TEXTS", "Further options of the runtime: `--nvccli`, `--fakeroot`."),
    ] = ()
    contained: Annotated[
        bool,
        KeySpec("BOOLEAN", "Hide the host: a separate home and `/tmp`, and only the job's variables.", "false"),
    ] = False
    local: Annotated[
        bool | None,
        KeySpec("BOOLEAN", "Copy an image file to each node's own disk first, once.", "true with a `local_disk`"),
    ] = None
    requirements: Annotated[
        str, KeySpec("TEXT", "A file of requirements that `serried image build` installs on top of `image`.")
    ] = ""
    made_from: str = ""
    """The definition or reference that Serried built the image from."""


class Limit(NamedTuple):
    lead_seconds: Annotated[
        int,
        KeySpec(
            "DURATION",
            "Time between the stop notice and the time limit; at most a quarter of the limit.",
            "60s",
            key="warn_before",
        ),
    ] = 60
    grace_seconds: Annotated[int, KeySpec("DURATION", "Time between TERM and KILL.", "30s", key="grace")] = 30
    silence_seconds: Annotated[
        int | None,
        KeySpec("DURATION_OR_OFF", "Fail if no rank prints for this time.", "off", key="output_timeout"),
    ] = None
    restarts: Annotated[int, KeySpec("COUNT_OR_NONE", "Most further attempts.", "0")] = 0
    """In a plan, with those that `total_time` needs."""
    total_seconds: Annotated[
        int | None,
        KeySpec(
            "DURATION_OR_OFF",
            "Time of the whole training: as many attempts as that takes, and `restarts` more. See [chains](chains.md).",
            "off",
            key="total_time",
        ),
    ] = None
    form: Annotated[
        str,
        KeySpec(
            "FORM",
            "Way to the next attempt: see [continuing](continuing.md).",
            "the cluster's, else `requeue`",
            key="continue",
        ),
    ] = names.REQUEUE
    notify: Annotated[
        str | None, KeySpec("SIGNAL", "Signal that asks ranks to save and exit: `USR1`, `TERM` …", "off")
    ] = None


class Launch(NamedTuple):
    """The launcher of the ranks. Each in `agent/launchers/kinds.py` starts them through `agent rank`."""

    kind: Annotated[
        str,
        KeySpec(
            "LAUNCHER",
            "Launcher of the ranks: see [launchers](launchers.md).",
            "`agent`; `single` for one rank without a GPU",
        ),
    ] = ""
    """Never empty in a plan."""
    max_restarts: Annotated[
        int, KeySpec("COUNT_OR_NONE", "How often torchrun restarts failed ranks within one attempt.", "0")
    ] = 0
    options: Annotated[
        tuple[str, ...],
        KeySpec("TEXTS", "Further options of the launcher, with `{nodes}`, `{ranks}`, `{gpus}` and `{world_size}`."),
    ] = ()


class Notify(NamedTuple):
    command: Annotated[
        tuple[str, ...],
        KeySpec(
            "COMMAND", "Command to run without a shell: a list of words, or text that is split like a shell command."
        ),
    ] = ()
    webhook: Annotated[str | None, KeySpec("WEBHOOK", "Name of the secret variable with the webhook's address.")] = None
    on: Annotated[
        tuple[str, ...],
        KeySpec("EVENTS", "Events: `start`, `finish`, `fail`, `stall`, `anomaly`.", "`finish` and `fail`"),
    ] = ("finish", "fail")


class Track(NamedTuple):
    """Trackers of experiments, which get the values of `run.log`."""

    sinks: Annotated[
        tuple[str, ...],
        KeySpec("SINKS", "Trackers that get the values of `run.log`: see [tracking](tracking.md)."),
    ] = ()
    project: Annotated[str, KeySpec("TEXT", "Project in wandb, experiment in MLflow.", "the project's name")] = ""
    """Never empty in a plan."""
    group: Annotated[str, KeySpec("TEXT", "Group of the run in wandb.", "the run's id for an array")] = ""
    mode: Annotated[
        str,
        KeySpec("TRACK_MODE", "Way to the servers of wandb and MLflow.", "`auto`: `online` if they can be reached"),
    ] = names.TRACK_AUTO
    every_process: Annotated[
        bool, KeySpec("BOOLEAN", "Make each rank a run of its own, instead of rank 0 alone.", "false")
    ] = False


class Sampling(NamedTuple):
    """What agents measure while ranks run."""

    every_seconds: Annotated[
        int | None,
        KeySpec(
            "DURATION_OR_OFF",
            "Interval between two measurements of CPUs, GPUs, memory and progress: see [sampling](sampling.md).",
            "5s",
            key="every",
        ),
    ] = 5


class ReportSettings(NamedTuple):
    """Of `serried report`."""

    mute: Annotated[
        tuple[str, ...],
        KeySpec("TEXTS", "Rules whose notes `serried report` leaves out: see [rules](rules.md).", "none"),
    ] = ()


class ReportedMetric(NamedTuple):
    """A metric of a program that does not log it by `serried.train`."""

    name: Annotated[str, KeySpec("TEXT", "Name of the metric.", "`metric`")] = "metric"
    source: Annotated[
        str,
        KeySpec(
            "METRIC_SOURCE",
            "Where the program reports its step and metrics: see [sampling](sampling.md#progress).",
            "the file of `run.log`",
            key="from",
        ),
    ] = ""

    def source_of(self, metric: str) -> str:
        """Where the program reports `metric`; empty if this source has no such value."""
        from serried.protocol import printed_metric  # few commands ask

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
    bytes: int | None = None
    """As counted at submit; None if that took too long."""
    files: int | None = None


class Data(NamedTuple):
    """The data that goes to the nodes, and the results that come back."""

    stage: Annotated[
        tuple[Staged, ...],
        KeySpec("ITEMS", "Files, folders and archives (unpacked) to copy to each node's disk before ranks start."),
    ] = ()
    in_place: Annotated[
        tuple[str, ...],
        KeySpec(
            "TEXTS",
            "Paths that must exist on every node, checked before ranks start.",
            key="require",
        ),
    ] = ()
    """Absolute once resolved."""
    results: Annotated[
        tuple[str, ...],
        KeySpec(
            "RESULTS", "Names and patterns of results to copy back. `$SERRIED_RESULTS_DIR` is then on the node's disk."
        ),
    ] = ()
    results_every_seconds: Annotated[
        int, KeySpec("DURATION", "Interval between two copies while ranks run.", "5m", key="results_every")
    ] = 300
    verify: Annotated[
        str,
        KeySpec("VERIFY", "How to compare a copy with its source: by sizes and times, or by checksums.", "`times`"),
    ] = "times"


class Sync(NamedTuple):
    """Checkpoints that a program without `serried.train` writes. Agents copy them to the run's own."""

    watch: Annotated[
        tuple[str, ...],
        KeySpec(
            "WATCHED",
            "Patterns of checkpoints that the program writes; complete ones are copied while it runs.",
        ),
    ] = ()
    every_seconds: Annotated[
        int, KeySpec("DURATION", "Interval between two searches for new checkpoints.", "30s", key="sync_every")
    ] = 30
    keep: Annotated[int, KeySpec("COUNT", "Number of copied checkpoints that stay.", "3")] = 3
    bandwidth: Annotated[int | None, KeySpec("BYTES", "Most data copied per second while ranks run.", "no limit")] = (
        None
    )
    keep_local: Annotated[
        int | None,
        KeySpec(
            "COUNT",
            "Number of checkpoints that stay on the node's disk. Older ones are deleted once copied or superseded.",
            "all",
        ),
    ] = None


class Dialect(NamedTuple):
    """The forms of a scheduler's job ids and answers, for agents that know no scheduler."""

    task: tuple[str, str] = ("", "")
    """A pattern and its replacement, which turn the id of an array job into that of a task; `{}` is the index."""
    awaited: tuple[str, str] = ("", "")
    """The same for a job that another depends on."""
    state_query: str = ""
    """Bash that prints the state of the job `$1` as one word: nothing for an unknown job, and a status other than 0 if
    the scheduler does not answer. Empty: none of its jobs outlives their agents."""
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


class Site(NamedTuple):
    """The facts about the cluster that the script and the agents need."""

    name: str = ""
    scheduler: str = ""
    docs: Annotated[
        str | None, KeySpec("TEXT", "Address of its documentation, printed in errors about limits and accounts.")
    ] = None
    contact: Annotated[str | None, KeySpec("TEXT", "Address for questions, printed in the same errors.")] = None
    root: Annotated[
        str,
        KeySpec(
            "TEXT",
            "Folder of run directories. May contain variables.",
            "`$SCRATCH/serried`, `$PSCRATCH/serried`, `/scratch/$USER/serried` or `$HOME/serried`; "
            "`$XDG_DATA_HOME/serried` on `local`",
        ),
    ] = ""
    """Absolute once resolved."""
    python: Annotated[str | None, KeySpec("TEXT", "Python 3.9 or later for the agent.", "one on the node")] = None
    gpu_option: Annotated[str, KeySpec("GPU_OPTION", "Slurm's option to request GPUs.", "`gres`")] = "gres"
    kill_wait_seconds: Annotated[
        int, KeySpec("DURATION", "Time between the scheduler's TERM and KILL.", "30s", key="kill_wait")
    ] = 30
    local_disk: Annotated[
        str | None, KeySpec("TEXT", "Scratch folder on each node. May contain the node's variables.")
    ] = None
    local_disk_bytes: Annotated[
        int | None, KeySpec("BYTES", "Most data of a job there.", "not checked", key="local_disk_size")
    ] = None
    local_disk_files: Annotated[int | None, KeySpec("COUNT", "Most files of a job there.", "not checked")] = None
    cache_bytes: Annotated[
        int,
        KeySpec(
            "BYTES_OR_NONE", "Most staged data that stays on a node's disk for later jobs.", "none", key="data_cache"
        ),
    ] = 0
    transfer: Annotated[
        str,
        KeySpec(
            "TRANSFER",
            "Way of staged data to several nodes: read once and passed on, or read by each node.",
            "`chain`",
            key="data_transfer",
        ),
    ] = "chain"
    gpu_resource: Annotated[
        str, KeySpec("TEXT", "The site's PBS resource for the type of a GPU, used for `gpu_type`.", "`gpu_type`")
    ] = "gpu_type"
    hides_gpus: Annotated[
        bool,
        KeySpec(
            "BOOLEAN",
            "PBS hides the GPUs of other jobs, by its cgroup hook. Otherwise jobs with GPUs take whole nodes.",
            "false",
        ),
    ] = False
    inside: str = ""
    """The scheduler of the job in which `serried run` was typed; `scheduler` is then this machine's."""
    scratch: str = ""
    """The folder for users' data that compute nodes see; empty without one."""
    launcher: Annotated[
        str,
        KeySpec(
            "TEXT",
            "Starts the agents of a PBS job: `pbsdsh`, `pbs_tmrsh` or a line of bash. "
            "See [PBS](pbs.md#how-agents-start).",
            "`pbsdsh` on `pbs`; `pbs_tmrsh` with `nodes`",
        ),
    ] = ""
    private: Annotated[
        str,
        KeySpec(
            "TEXT",
            "Folder for a file with the job's environment that only you can read (PBS). Compute nodes must see it.",
            "`private/` in the run directory",
        ),
    ] = ""
    """Absolute once resolved."""
    is_this_machine: bool = False
    """Its jobs share this machine with the user, outside of any scheduler."""
    dialect: Dialect = Dialect()

    @property
    def support(self) -> str | None:
        """`ask help@site, or see https://…`, as far as the profile has them."""
        ways = [f"ask {self.contact}" if self.contact else "", f"see {self.docs}" if self.docs else ""]
        return ", or ".join(way for way in ways if way) or None
