"""PBS: one `qstat` for all runs together, one `qsub` for a submission.

A plan becomes PBS's commands and PBS's part of job.sh; only `Pbs` at the end starts commands.

job.sh is a program (`qsub … -- /bin/bash job.sh TOKEN`), not a script: a script may have no arguments, is started by a
login shell that resets PATH and dies of the first signal, and may hold directives.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from serried.base import files, processes, shell
from serried.base.errors import SubmissionRefused, SubmissionUncertain, UsageError
from serried.base.files import MODES
from serried.schedulers import scrub
from serried.schedulers.client import CommandScheduler, JobKey, SubmitOutcome
from serried.schedulers.interface import (
    ERRAND_MEMORY_MB,
    ERRAND_SECONDS,
    OF_THIS_MACHINE,
    Fragment,
    Job,
    SubmitCommand,
    Variables,
    job_name,
    names_token,
    script_logs,
    submit_folder,
)
from serried.schedulers.pbs import parse
from serried.schema import names, successor_commands
from serried.schema.layout import RunDirectory
from serried.schema.plan import Allocation, Array, Plan, UserScript

MAIL = {"NONE": "n", "BEGIN": "b", "END": "e", "FAIL": "a", "ALL": "abe"}
"""Slurm's words for when to send mail, which `resources.mail_type` uses, and PBS's letters."""

_SIZES = re.compile(r"(select|place|nodes|walltime|ncpus|ngpus|mem|vmem|pmem|cput|mpiprocs|ompthreads|host)\b")
"""Resources of `-l` that belong to one size of job."""

TOLERANT = ("-W", "tolerate_node_failures=all")
"""Otherwise PBS kills the job some minutes after it has lost a node."""

PROGRAMS = "PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin\n"

ENVIRONMENT = (
    """
# PBS shows a job's variables to everybody, so they came in a file. Variables that PBS sets stay.
serried_private=$2 # job.sh TOKEN FILE
unset OMP_NUM_THREADS # PBS's is the chunk's CPUs; the user's, if any, is in the file
[[ -r $serried_private ]] && while IFS= read -r -d '' serried_entry; do
  serried_name=${serried_entry%%=*}
  case $serried_name in
    BASH_FUNC_*%%)
      serried_name=${serried_name#BASH_FUNC_} && serried_name=${serried_name%"%%"}
      eval "$serried_name ${serried_entry#*=}" && export -f "${serried_name?}"
      ;;
    *[!A-Za-z0-9_]*) ;; # no name that a shell could export
    serried_* | SECONDS) ;; # of this script
    TMPDIR | *_VISIBLE_DEVICES) [[ -v $serried_name ]] || export "${serried_entry?}" ;; # PBS's own are true of this job
    *) export "${serried_entry?}" ;;
  esac
done <"$serried_private"
"""
    + PROGRAMS
)

FRAGMENT = Fragment(
    cleanup="""
exec >>"scheduler${PBS_ARRAY_INDEX:+-$PBS_ARRAY_INDEX}.log" 2>&1 # PBS cannot name some paths
"""
    + ENVIRONMENT,
    job='"${PBS_ARRAY_ID:-$PBS_JOBID}"',
    task='"${PBS_ARRAY_INDEX:-$SERRIED_TASK}"',
    head_options='--hosts "$(awk \'!seen[$0]++\' "$PBS_NODEFILE" | paste -sd, -)" '
    '--node-variable OMPI_COMM_WORLD_RANK,PMI_RANK,PBS_NODENUM --environment "$serried_private" --age "$SECONDS"',
    functions="",
    again="""\
  serried_final=limit
  serried_conclude
""",
    check="""
# It goes with the run: so a job that is left over finds its run ended, and any other cannot begin.
serried_cannot="the job's environment cannot be read here: $serried_private"
[[ -r $serried_private ]] || exec "${serried_agent[@]}" fail-setup "${serried_who[@]}" --problem "$serried_cannot"
""",
    task_index="{PBS_ARRAY_INDEX:-$SERRIED_TASK}",
    index_variable="PBS_ARRAY_INDEX",
)

INSIDE = OF_THIS_MACHINE._replace(
    cleanup="""
serried_private=$2 # job.sh TOKEN FILE: beside it the head puts the environment of the nodes
"""
    + PROGRAMS,
    head_options=FRAGMENT.head_options,
)

OF_SHELL = """\
if [[ ! -r $serried_private ]]; then
  echo "serried: the job's environment cannot be read here: $serried_private" >&2
  exit 70
fi
rm -f -- "$serried_private"
"""
SHELL = ENVIRONMENT + OF_SHELL

EACH_HOST = (
    PROGRAMS
    + """\
for serried_host in $(awk '!seen[$0]++' "$PBS_NODEFILE" | head -n "$0"); do pbs_tmrsh "$serried_host" "$@" & done
wait"""
)
"""Starts the words after the first, how many nodes, on each. A profile or a module may have set another PATH before."""


def required_options(extra: Sequence[str]) -> tuple[str, ...]:
    """The project, and resources of the job that are no sizes: `-P x`, `-l filesystems=home`, `-l storage=gdata/x`."""
    # `-lfilesystems=home` is one word for two.
    parted = [part for word in extra for part in ((word[:2], word[2:]) if re.match("-[lP].", word) else (word,))]
    return tuple(
        word
        for flag, value in zip(parted, parted[1:])
        if flag == "-P" or (flag == "-l" and not _SIZES.match(value))
        for word in (flag, value)
    )


def script_lines(plan: Plan, script: UserScript) -> str:
    name = script.job_name
    lines = [
        f"export PBS_JOBNAME={shlex.quote(name)} PBS_O_WORKDIR={_submit_folder(plan)}",
        "# PBS overwrites the user's value, also with `-V`.",
        "serried_threads=$(tr '\\0' '\\n' </proc/$$/environ | sed -n 's/^OMP_NUM_THREADS=//p')",
        "export OMP_NUM_THREADS=${serried_threads:-${NCPUS:-1}}",
        f"export {names.SCRIPT_UMASK}=$(umask)",
        f"export {names.SCRIPT_JOB}=PBS_JOBID=$PBS_JOBID",
    ]
    usual = f'{_submit_folder(plan)}/{shlex.quote(name)}.o"${{PBS_JOBID%%[.[]*}}"'
    usual += '."$PBS_ARRAY_INDEX"' if plan.array else ""
    logs = script_logs(_log_path(plan, script.log) or usual, _log_path(plan, script.errors))
    return "\n".join([*lines, logs])


def _submit_folder(plan: Plan) -> str:
    return submit_folder(plan, FRAGMENT.task)


def whole_array(array: Array) -> str:
    return ""


def _log_path(plan: Plan, value: str) -> str:
    """A word of bash for the user's log, from `-o` or `-e`: `[HOST:]PATH`, or a folder. See qsub(1B)."""
    path = value.rpartition(":")[2]
    if not path or path.endswith("/"):
        return ""
    texts = [shlex.quote(part) if part else "" for part in path.split("^array_index^", 1)]
    word = '"${PBS_ARRAY_INDEX:-}"'.join(texts)
    return word if path.startswith("/") else f"{_submit_folder(plan)}/{word}"


def stand_in(plan: Plan, script: UserScript) -> str:
    """Numbers are those of the plan on one node. Scripts compute with the job's id, so it begins with a number."""
    allocation = plan.allocation
    values = {
        "PBS_JOBNAME": script.job_name,
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "NCPUS": allocation.cpus,
        "OMP_NUM_THREADS": max(1, allocation.cpus // allocation.ranks),
    }
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in values.items()]
    lines += ["export PBS_ARRAY_INDEX=$SERRIED_TASK"] if plan.array else []
    lines += [f"export PBS_O_WORKDIR={_submit_folder(plan)}"]
    lines += [f"export {names.SCRIPT_JOB}=PBS_JOBID=$$.$HOSTNAME {names.STAND_INS}="]
    lines += ["export PBS_JOBID=$$.$HOSTNAME PBS_NODEFILE=$SERRIED_RUN_DIR/nodefile-$$"]
    hosts = " ".join(['"$HOSTNAME"'] * allocation.ranks)
    lines += [f"printf '%s\\n' {hosts} >\"$PBS_NODEFILE\""]
    return "\n".join([*lines, script_logs(_log_path(plan, script.log), _log_path(plan, script.errors))])


def launcher(plan: Plan) -> str:
    """What the profile names: one of PBS's own two, or the site's words. Without a name, the one of PBS that suits."""
    allocation, named = plan.allocation, plan.site.launcher
    if named not in ("", "pbsdsh", "pbs_tmrsh"):
        for name, number in (("nodes", allocation.nodes), ("ranks", allocation.ranks), ("gpus", allocation.gpus)):
            named = named.replace(f"{{{name}}}", str(number))
        return named
    if not named and plan.script:
        # Its directives may put a host into the node file more than once, and leave the number of hosts open.
        return shlex.join(("/bin/bash", "-c", EACH_HOST, "1000000"))
    if named == "pbs_tmrsh" or (not named and plan.site.inside):
        # In a job that another program requested, the node file may list a node more than once. One after the other,
        # each in the background; what they exit with says nothing.
        return shlex.join(("/bin/bash", "-c", EACH_HOST, str(allocation.job_nodes)))
    # One process for each line of the node file, and `mpiprocs=1` gives each node one. It always exits 0.
    return "pbsdsh --"


def _handover(plan: Plan) -> Path:
    """One file for all jobs of the run: they get the same environment."""
    return Path(plan.private) / plan.run


def walltime(seconds: int) -> str:
    """PBS's spelling of a limit: `2:00:00`, `100:00:00`."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def chunk(allocation: Allocation, tasks: int = 1, gpu_resource: str = "gpu_type") -> str:
    """What each node has to give: `ncpus=8:mpiprocs=1:ngpus=2:mem=20480mb`. One process is started on it: the agent."""
    parts = [f"ncpus={allocation.cpus}", f"mpiprocs={tasks}"]
    if allocation.gpus:
        parts.append(f"ngpus={allocation.gpus}")
    if allocation.gpu_type:
        parts.append(f"{gpu_resource}={allocation.gpu_type}")
    if allocation.memory_mb:
        parts.append(f"mem={allocation.memory_mb}mb")
    return ":".join([*parts, *allocation.constraint])


def _options(plan: Plan, token: str, task: str) -> list[str]:
    allocation = plan.allocation
    return [
        "-N",
        job_name(plan.name, token),
        "-o",
        _log(plan, task),
        "-j",
        "oe",
        "-k",
        "oed",
        # PBS refuses an array that it could not start again; nothing else should start again by itself.
        "-r",
        "y" if _is_array(plan, task) else "n",
        "-W",
        f"umask={MODES[plan.share].umask:03o}",
        *(TOLERANT if allocation.spare_nodes else ()),
        *(
            _of_script(plan, plan.script)
            if plan.script
            else (*_size(plan, tasks=1), *_limit(plan.allocation), *_queue(allocation))
        ),
        *_array(plan, task),
    ]


def _of_script(plan: Plan, script: UserScript) -> list[str]:
    """The options of its directives, then those that replace some of them."""
    keys, allocation = frozenset(script.keys), plan.allocation
    size = _size(plan, tasks=allocation.ranks) if keys & OF_SIZE else ()
    limit = _limit(allocation) if "time" in keys else ()
    return [*script.options, *size, *limit, *_queue(allocation, keys)]


def _size(plan: Plan, *, tasks: int) -> list[str]:
    """`select=2` alone may put both on one host."""
    # All memory of a node can only be had with the whole node.
    is_exclusive = plan.allocation.exclusive or plan.allocation.memory_mb == 0
    place = "scatter:excl" if is_exclusive else "scatter"
    of_node = chunk(plan.allocation, tasks, plan.site.gpu_resource)
    chunks = "+".join(f"1:host={host}:{of_node}" for host in plan.allocation.hosts)
    return ["-l", f"select={chunks or f'{plan.allocation.job_nodes}:{of_node}'}", "-l", f"place={place}"]


def _limit(allocation: Allocation) -> tuple[str, ...]:
    return ("-l", f"walltime={walltime(allocation.time_seconds)}") if allocation.time_seconds else ()


def _log(plan: Plan, task: str) -> str:
    """Where PBS's own words go; job.sh, which opens its log itself, adds to them.

    PBS takes ASCII alone, and knows one placeholder, in arrays alone: an index, which of an array in parts is no
    task's.
    """
    log = str(RunDirectory(Path(plan.directory)).scheduler_log())
    if not (log.isascii() and log.isprintable()):
        return os.devnull
    is_named = _is_array(plan, task) and not (plan.array and plan.array.offsets)
    return log.removesuffix(".log") + "-^array_index^.log" if is_named else log


OF_SIZE = {"nodes", "gpus", "gpu_type", "ranks", "cpus", "mem", "mem_per_node", "mem_per_cpu", "exclusive"}
"""Keys of `resources` that make up the chunks of a job."""
QUEUE_KEYS = ("account", "partition", "reservation", "mail_user", "mail_type")


def _queue(allocation: Allocation, keys: Collection[str] = QUEUE_KEYS) -> list[str]:
    given = {key: getattr(allocation, key) for key in QUEUE_KEYS if key in keys}
    asked = {
        "-A": given.get("account"),
        "-q": given.get("reservation") or given.get("partition"),
        "-M": given.get("mail_user"),
        "-m": "".join(dict.fromkeys("".join(MAIL.get(word.upper(), "") for word in given.get("mail_type", ())))),
    }
    return [word for flag, value in asked.items() if value for word in (flag, value)]


def _array(plan: Plan, task: str) -> list[str]:
    """`-J 0-9:3%2`. PBS has no array of one: that is an ordinary job which is told its index."""
    if plan.array is None:
        return []
    indices = plan.array.indices
    if not _is_array(plan, task):
        return ["-v", f"{names.TASK}={task or indices[0]}"]
    throttle = f"%{plan.array.parallel}" if plan.array.parallel else ""
    step = indices[1] - indices[0]
    if list(indices) != list(range(indices[0], indices[-1] + 1, step)):
        message = "PBS runs only arrays whose indices are a range with a step, such as `0-99` or `0-98:2`"
        raise UsageError(message, hint="submit one range at a time, or the whole range: unwanted tasks can end at once")
    return ["-J", f"{indices[0]}-{indices[-1]}" + (f":{step}" if step > 1 else "") + throttle]


def _is_array(plan: Plan, task: str) -> bool:
    return plan.array is not None and len(plan.array.indices) > 1 and not task


MANY = 1000
"""Jobs in one query. With `-E`, `qstat` opens one connection for all jobs. Without, it opens one for each, from a
privileged port; there are few of these, so it waits (20 s with 150 jobs)."""
VERSION = "pbs_version"
"""The first word of `qstat --version` in OpenPBS and PBS Professional, and in no other system with a `qstat`."""

UNKNOWN_JOB = 153
HAS_FINISHED = 35
UNREACHABLE = (162, 255)
"""Exit statuses: the low byte of PBS's own error numbers (src/include/pbs_error.h)."""
GONE = (0, UNKNOWN_JOB, HAS_FINISHED)
SPARES_HINT = "spare nodes need `tolerate_node_failures`, of PBS 19.1 or later; `--spare-nodes 0` requests none"


class Pbs(CommandScheduler):
    name = "pbs"
    title = "PBS"
    server = "the PBS server"
    identity = "PBS_SERVER"
    survey = "qstat"
    cancel_command = ("qdel",)
    release_command = ("qrls",)
    id_pattern = r"^(\d+(?:\[\])?\.[\w.-]+)$"
    gone = begun = re.compile(r"Unknown Job Id|Job has finished|Request invalid for state of job")
    reasons = parse.REASONS
    strands = True
    _is_pbs = False

    def submission(
        self, plan: Plan, token: str, environment: Variables, *, after: str = "", task: str = "", held: bool = False
    ) -> SubmitCommand:
        """The `qsub` command that submits `plan`'s job.sh under `token`.

        Raises UsageError for what PBS cannot be asked: an array whose indices are no range, a job that requeues itself.
        """
        if plan.may_requeue:
            hint = '`continue = "prequeued"` in `[limit]` or, where compute nodes may submit, "successor"'
            raise UsageError("PBS lets no job requeue itself: `qrerun` is for operators", hint=hint)
        if plan.has_links and plan.limit.continue_by == names.SUCCESSOR and _is_array(plan, ""):
            hint = '`continue = "prequeued"` in `[limit]`: then each array waits for all of the one before'
            raise UsageError("PBS lets no job wait for one task of an array", hint=hint)
        handover = _handover(plan)
        words = ("/bin/bash", plan.directory + "/job.sh", token, str(handover))
        # No job of PBS can wait for one task: it waits for the whole array, then looks how that task ended.
        jobs = dict.fromkeys(parse.split(job)[0] for job in after.split(":"))
        awaited = [plan.script.dependency] if plan.script and plan.script.dependency else []
        awaited += [f"afterany:{':'.join(jobs)}"] if after else []
        waits = ("-W", f"depend={','.join(awaited)}") if awaited else ()
        hold = ("-h",) if held else ()
        argv = ("qsub", "-f", *_options(plan, token, task), *waits, *hold, *plan.allocation.extra, "--", *words)
        return SubmitCommand(argv, scrub(environment), umask=MODES[plan.share].umask, handover=handover)

    def interactive(
        self, plan: Plan, token: str, environment: Variables, *, now: bool, has_terminal: bool
    ) -> SubmitCommand:
        """`qsub -I`. It knows no `now`: who asked for that looks how the job stands."""
        if not has_terminal:
            hint = "`serried submit -- COMMAND`, then `serried wait` and `serried logs`"
            raise UsageError("PBS starts interactive jobs only from a terminal", hint=hint)
        handover = _handover(plan)
        allocation = plan.allocation
        argv = (
            *("qsub", "-I"),
            "-N",
            job_name(plan.name, token),
            *_size(plan, tasks=allocation.ranks),
            *_limit(plan.allocation),
            *_queue(allocation),
            *allocation.extra,
            *("--", "/bin/bash", plan.directory + "/job.sh", token, str(handover)),
        )
        return SubmitCommand(argv, scrub(environment), umask=MODES[plan.share].umask, handover=handover)

    def join(self, job: str, host: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:
        # PBS starts nothing in a job from outside of it.
        return ("ssh", *(("-t",) if has_terminal else ()), host, shlex.join(words))

    def errand(self, plan: Plan, host: str, words: Sequence[str]) -> tuple[str, ...]:
        """A job on that node which `qsub` waits for. It inherits nothing: PBS would show that to everybody."""
        asked = plan.allocation._replace(mail_type=(), mail_user=None)
        size = f"select=1:ncpus=1:mem={ERRAND_MEMORY_MB}mb:host={host}"
        return (
            *("qsub", "-W", "block=true", "-r", "n", "-j", "oe", "-o", os.devnull),
            "-N",
            job_name(plan.name, f"{plan.run}-errand"),
            *(word for text in (size, f"walltime={walltime(ERRAND_SECONDS)}") for word in ("-l", text)),
            *_queue(asked),
            *required_options(plan.allocation.extra),
            *("--", *words),
        )

    def submit(self, submission: SubmitCommand) -> str:
        if submission.handover is None:
            raise ValueError("PBS shows a job's variables to everybody: they need a file")
        self._check_version()
        is_shared = submission.handover.exists()  # by an earlier job of the run, which still needs it
        files.make_directory(submission.handover.parent)
        files.write_environment(submission.handover, submission.environment)
        result = self.deliver(submission.argv, scrub(os.environ), submission.umask)
        job = successor_commands.new_id(result.stdout, self.id_pattern)
        if job is not None:
            return job
        failure = self.failure("qsub", result)
        if isinstance(failure, SubmissionRefused) and TOLERANT[1] in submission.argv:
            failure.hint = SPARES_HINT
        if not is_shared and not isinstance(failure, SubmissionUncertain):
            with contextlib.suppress(OSError):
                submission.handover.unlink()
        raise failure

    def find(self, token: str, since: float | None = None) -> str | None:
        # A minute more, for clocks that differ.
        window = () if since is None else (time.strftime("-tc.ge.%Y%m%d%H%M", time.localtime(since - 60)),)
        newest_first = self.answer(("qselect", "-x", "-u", processes.user(), *window)).split()[::-1]
        pairs = parse.named(self._qstat(newest_first))
        return next((job for job, name in pairs if names_token(name, token)), None)

    def outcome(self, result: shell.Result) -> SubmitOutcome:
        """PBS refuses in the foreground (`-f`): any status but that of an absent server is a refusal."""
        if result.status in UNREACHABLE:
            return SubmitOutcome.UNREACHABLE
        return SubmitOutcome.REFUSED if result.status > 0 else SubmitOutcome.UNCERTAIN

    def ask(self, ids: Sequence[str], since: float | None) -> dict[str, str]:
        text = self._qstat(sorted({parse.split(job)[0] for job in ids}))
        if before := parse.awaited(text):
            text += self._qstat(sorted(before))
        return {"qstat": text}

    def read(self, texts: Mapping[str, str]) -> dict[JobKey, Job]:
        return {(job.id, job.task): job for job in parse.jobs(texts["qstat"])}

    def poll_others(self, users: Sequence[str]) -> Mapping[JobKey, Job]:
        return self.read({"qstat": self._qstat(self.answer(("qselect", "-u", ",".join(users))).split())})

    def split(self, job: str) -> JobKey:
        return parse.split(job)

    def _check_version(self) -> None:
        """Torque and Slurm's wrappers have commands of the same names. Raises SubmissionRefused."""
        if self._is_pbs or shell.which("qstat") is None:
            return
        version = self.query(("qstat", "--version"))
        self._is_pbs = VERSION in version.stdout + version.stderr
        if not self._is_pbs:
            raise SubmissionRefused(
                "`qstat` here belongs to Torque or to Slurm's wrappers; Serried supports OpenPBS and PBS Professional",
                details=version.stdout.strip() or version.stderr.strip() or None,
                hint="on Slurm: `--cluster slurm`; within a job of Torque: `serried run --cluster local`, on one node",
            )

    def _qstat(self, ids: Sequence[str]) -> str:
        """All attributes of these jobs and their tasks, ended ones included. An unknown job only changes the status."""
        parts = (ids[start : start + MANY] for start in range(0, len(ids), MANY))
        return "".join(self.answer(("qstat", "-E", "-x", "-t", "-f", "-w", *part), GONE) for part in parts)

    def query_environment(self) -> dict[str, str]:
        return {**scrub(os.environ), "LC_ALL": "C"}


SCHEDULER = Pbs
