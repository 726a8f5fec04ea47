"""Slurm, from 20.11 on: at most one `squeue` and one `sacct` for all runs together, one `sbatch` for a submission.

A plan becomes Slurm's commands and Slurm's part of job.sh; only `Slurm` at the end starts commands.

Every option is on argv: `#SBATCH` lines lose backslashes, are cut at `#`, and are overridden by `SBATCH_*` variables.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from serried.base import shell
from serried.base.errors import MissingProgramError, SchedulerUnreachable, UsageError
from serried.base.files import MODES
from serried.base.text import compress, show_walltime
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
from serried.schedulers.slurm import parse
from serried.schema import binds, names, successor_commands
from serried.schema.layout import RunDirectory
from serried.schema.plan import Allocation, Array, Plan, UserScript

LONGEST_LEAD = 65535
"""What `--signal` can carry."""


FRAGMENT = Fragment(
    cleanup="""
# Options for sbatch or srun in the submitting shell must not change the steps of this job.
unset "${!SBATCH_@}" "${!SRUN_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_EXPORT_ENV
""",
    job='"${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"',
    task='"$SLURM_ARRAY_TASK_ID"',
    head_options='--hosts "$SLURM_JOB_NODELIST" --node-variable SLURM_NODEID --end "${SLURM_JOB_END_TIME:-}"',
    functions="""
serried_is_requeued() {
  serried_id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_JOB_ID:+_$SLURM_ARRAY_TASK_ID}
  serried_shown=$(scontrol show job "$serried_id" 2>/dev/null)
  [[ $serried_shown == *" Restarts=$((${SLURM_RESTART_COUNT:-0} + 1)) "* ]]
}
# The last act. `incomplete`: a job that was cancelled stays so, though scontrol says yes; `Restarts` is the truth.
serried_run_again() {
  trap '' TERM USR1
  serried_final=limit
  for ((serried_try = 0; serried_try < 60; serried_try++)); do
    serried_is_requeued && sleep 60 && exit 0
    case $(squeue --noheader --jobs="$serried_id" --format=%T 2>/dev/null) in
      RUNNING) scontrol requeue incomplete "$serried_id" && continue ;;
      COMPLETING | CANCELLED) serried_final=ended && return ;;
    esac
    sleep 5
  done
}
""",
    script_ended="""
# TERM comes with a cancel, and also when the script, or Slurm for a preemption, has requeued the job. A script that
# exits at once may end before TERM. A controller that is away is tried again: it could not free the nodes either, and
# a job that it has requeued is killed long before the last try, so that nothing counts as its end.
for ((serried_try = 0; serried_try < 24; serried_try++)); do
  serried_is_requeued && serried_final=requeue
  [[ -n $serried_shown ]] || ! type -P scontrol >/dev/null && break
  sleep 5
done
""",
    again="""\
  serried_run_again
  serried_conclude
""",
    task_index="SLURM_ARRAY_TASK_ID",
    index_variable="SLURM_ARRAY_TASK_ID",
    cancel_idle="""\
  [[ $serried_answer == idle\\ * ]] && scancel --quiet --state=PENDING "${SLURM_ARRAY_JOB_ID}_[${serried_answer#idle }]"
""",
    own_log="""
exec >>"scheduler-$serried_index.log" 2>&1
""",
)

INSIDE = OF_THIS_MACHINE._replace(cleanup=FRAGMENT.cleanup, head_options=FRAGMENT.head_options)
SHELL = FRAGMENT.cleanup


def _step_cpus(plan: Plan, cpus: int) -> tuple[str, ...]:
    """Without `--cpus-per-task` and bindings, a step has all CPUs of each node, however many that are."""
    return ("--whole", "--cpu-bind=none") if plan.has_all_cpus else (f"--cpus-per-task={cpus}",)


def _step(
    cpus: tuple[str, ...], *, has_terminal: bool, more: tuple[str, ...] = ("--relative=0", "--preserve-env")
) -> tuple[str, ...]:
    """All resources of the job on one node, shared with its other steps."""
    size = ("--nodes=1", "--ntasks=1")
    return ("srun", *more, *size, *cpus, "--overlap", "--export=ALL", *(("--pty",) if has_terminal else ()))


def required_options(extra: Sequence[str]) -> tuple[str, ...]:
    """None: account, partition, QoS and licences are settings of their own."""
    return ()


def launcher(plan: Plan) -> str:
    """Everything is said here: what a step inherits from its job changed in Slurm 22.05 and again in 23.11."""
    if plan.script:
        return BESIDE_SCRIPT
    nodes, gpus = plan.allocation.job_nodes, plan.allocation.gpus
    # Of a job that may have more nodes the first ones, as the head is on the first. Of GPUs all that each node has,
    # also where the job was asked for with some for each task.
    of_job = ("--relative=0", *((f"--gres=gpu:{gpus}",) if gpus else ())) if plan.site.inside else ()
    # Steps that overlap share CPUs, and no GPUs: where the ranks are a step of their own, the agents' takes none.
    step_gpus = ("--gres=none" if plan.launch.kind == "srun" else "--gpu-bind=none",) if gpus else ()
    words = (
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        *of_job,
        *_step_cpus(plan, plan.allocation.cpus),
        *step_gpus,
        "--overlap",
        "--export=ALL",
        # `--no-kill` alone, the step would still end with the task of a lost node.
        *(("--no-kill", "--kill-on-bad-exit=0") if plan.allocation.spare_nodes else ("--kill-on-bad-exit=1",)),
        "--wait=0",
        "--input=none",
        "--unbuffered",
        "--job-name=serried",
        *_pyxis(plan),
    )
    return shlex.join(words)


def script_lines(plan: Plan, script: UserScript) -> str:
    folder = submit_folder(plan, '"$SLURM_ARRAY_TASK_ID"')
    lines = f"export SLURM_JOB_NAME={shlex.quote(script.job_name)} SLURM_SUBMIT_DIR={folder}\n"
    lines += f"export {names.SCRIPT_JOB}=SLURM_JOB_ID=$SLURM_JOB_ID\n"
    if not script.appends:  # of this job; for its steps it would be an option of `srun --output`
        lines += "unset SLURM_OPEN_MODE\n"
    usual = "slurm-%A_%a.out" if plan.array else "slurm-%j.out"
    return lines + script_logs(_log_path(script.log or usual), _log_path(script.errors))


_ESCAPES = {
    "A": "SLURM_ARRAY_JOB_ID", "a": "SLURM_ARRAY_TASK_ID", "J": "SLURM_JOB_ID", "j": "SLURM_JOB_ID",
    "N": "SLURMD_NODENAME", "u": "USER", "x": "SLURM_JOB_NAME",
}  # fmt: skip
_OTHERWISE = {"A": "$SLURM_JOB_ID", "u": "$(id -un)"}
_ESCAPE = r"%(\d*)([A-Za-z%])"


def _log_path(pattern: str) -> str:
    """A path as a word of bash, from the pattern of `--output` or `--error`. See sbatch(1)."""
    if "\\" in pattern:  # a backslash turns all escapes off
        return shlex.quote(pattern.replace("\\", ""))
    parts = re.split(_ESCAPE, pattern)  # text, width, letter, text, …
    texts = [shlex.quote(text) if text else "" for text in parts[::3]]
    values = [*map(_expanded, parts[2::3], parts[1::3]), ""]
    return "".join(itertools.chain(*zip(texts, values)))


def _expanded(letter: str, width: str) -> str:
    name = _ESCAPES.get(letter)
    if name is None:
        return {"%": "%", "s": "batch", "b": "0", "n": "0", "t": "0"}.get(letter, f"%{letter}")
    value = f"${{{name}:-{_OTHERWISE.get(letter, '')}}}"
    is_padded = bool(width) and letter in "AaJj"
    return f'"$(printf %0{min(int(width), 10)}d "{value}")"' if is_padded else f'"{value}"'


def stand_in(plan: Plan, script: UserScript) -> str:
    """Numbers are those of the plan on one node. Scripts compute with the job's id, so it is a number."""
    allocation = plan.allocation
    values = {
        "SLURM_JOB_NAME": script.job_name,
        "SLURM_JOB_NUM_NODES": allocation.nodes,
        "SLURM_NNODES": allocation.nodes,
        "SLURM_NTASKS": allocation.nodes * allocation.ranks,
        "SLURM_NPROCS": allocation.nodes * allocation.ranks,
        "SLURM_NTASKS_PER_NODE": allocation.ranks,
        "SLURM_TASKS_PER_NODE": allocation.ranks,
        "SLURM_CPUS_PER_TASK": max(1, allocation.cpus // allocation.ranks),
        "SLURM_CPUS_ON_NODE": allocation.cpus,
        **({"SLURM_GPUS_ON_NODE": allocation.gpus} if allocation.gpus else {}),
        "SLURM_PROCID": 0,
        "SLURM_LOCALID": 0,
        "SLURM_NODEID": 0,
    }
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in values.items()]
    lines += [f"export SLURM_SUBMIT_DIR={submit_folder(plan, f'${names.TASK}')}"]
    lines += ["export SLURM_JOB_ID=$$ SLURM_JOBID=$$", f"export {names.SCRIPT_JOB}=SLURM_JOB_ID=$$"]
    lines += [f"export {names.STAND_INS}=srun"]
    lines += [f"export {name}=$HOSTNAME" for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME")]
    if plan.array:
        lines += ["export SLURM_ARRAY_JOB_ID=$PPID SLURM_ARRAY_TASK_ID=$SERRIED_TASK"]
    array = whole_array(plan.array) if plan.array else ""
    return "\n".join([*lines, array]) + script_logs(_log_path(script.log), _log_path(script.errors))


def whole_array(array: Array) -> str:
    _, has_step, step = compress(array.indices).rpartition(":")  # sbatch sets the last step that it reads
    about = {
        "COUNT": len(array.indices),
        "MIN": array.indices[0],
        "MAX": array.indices[-1],
        "STEP": step.partition(",")[0] if has_step else 1,
    }
    return f"export {' '.join(f'SLURM_ARRAY_TASK_{name}={number}' for name, number in about.items())}\n"


BESIDE_SCRIPT = (
    "env $(compgen -v SLURM_ | "
    "grep -vxE 'SLURM_(CONF|CLUSTERS|CLUSTER_NAME|TMPDIR|JOB_ID|JOBID|JOB_NODELIST|JOB_NUM_NODES)' | sed 's/^/-u /') "
    'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task=1 '
    "--gres=none --mem=0 --overlap --export=ALL --kill-on-bad-exit=1 --wait=0 --input=none --unbuffered "
    "--job-name=serried"
)
"""The agents beside a job script, one on each of the nodes that it got. Its directives are variables of the job, which
would be options of this step. The agents take no GPUs, and share CPUs and memory with the script's own steps."""


def _pyxis(plan: Plan) -> tuple[str, ...]:
    """A container for the whole agent: pyxis is a part of Slurm. Its Python is the image's, and not the head's."""
    if plan.container is None or plan.container.runtime != "pyxis":
        return ()
    of_project = os.path.dirname(os.path.dirname(plan.directory))  # noqa: PTH120 - where another run's checkpoints are too
    folders = map(binds.parse, dict.fromkeys((of_project, plan.source.directory, *plan.container.binds)))
    mounts = [f"{one.source}:{one.destination}" + (":ro" if one.is_read_only else "") for one in folders]
    said = plan.environment
    named = ",".join(("PYTHONPATH", *said.env, *said.secrets, *said.env_file))
    return (
        f"--container-image={plan.container.image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-env={named}",
        *(["--container-writable"] if plan.container.writable else []),
        *plan.container.options,
        "/bin/sh",
        "-c",
        'shift; exec python3 "$@"',
        "sh",
    )


def walltime(seconds: int) -> str:
    """Slurm's spelling of a limit, rounded up to the minutes that it counts in: `2:00:00`, `1-00:00:00`."""
    return show_walltime(math.ceil(seconds / 60) * 60)


def _options(plan: Plan, token: str, task: str) -> list[str]:
    folder = plan.script.folder if plan.script and not plan.source.snapshot else ""
    allocation, name = plan.allocation, job_name(plan.name, token)
    is_singleton = plan.script is not None and plan.script.is_singleton
    # For a script without further attempts of Serried: its directive, else the site's default.
    is_open = plan.script is not None and not plan.limit.restarts
    requeue = [] if is_open else ["--requeue" if plan.may_requeue else "--no-requeue"]
    has_own_notice = plan.script is not None and bool(plan.script.notice_to)  # then also with its partition's limit
    lead = min(plan.limit.warn_before_seconds if has_own_notice else plan.warn_before_seconds, LONGEST_LEAD)
    options = [
        f"--job-name={plan.script.job_name if plan.script and is_singleton else name}",
        f"--chdir={folder or plan.directory}",
        f"--output={_log_pattern(plan)}",
        "--open-mode=append",
        *(_of_script(plan, plan.script) if plan.script else _resources(plan, tasks=1)),
        *([f"--signal=B:USR1@{lead}"] if lead else []),
        *([] if plan.script else _queue(allocation)),
        *requeue,
        "--export=ALL",
        *_array(plan, task),
    ]
    if is_singleton:  # Slurm compares names, so the token is at the end of the comment
        comments = [option.partition("=")[2] for option in options if option.startswith("--comment=")]
        options.append(f"--comment={' '.join([*comments[-1:], name])}")
    return options


def _resources(plan: Plan, *, tasks: int) -> list[str]:
    """What each node has to give, to so many tasks."""
    allocation = plan.allocation
    return [
        f"--nodes={allocation.job_nodes}",
        *(["--no-kill"] if allocation.spare_nodes else []),
        f"--ntasks-per-node={tasks}",
        *(() if plan.has_all_cpus else (f"--cpus-per-task={allocation.cpus // tasks}",)),
        *_memory(allocation),
        *_gpus(allocation, plan.site.gpu_option),
        *_limit(allocation),
        *([f"--nodelist={','.join(allocation.hosts)}"] if allocation.hosts else []),
    ]


def _limit(allocation: Allocation) -> list[str]:
    return [] if allocation.time_seconds is None else [f"--time={walltime(allocation.time_seconds)}"]


def _of_script(plan: Plan, script: UserScript) -> list[str]:
    """The options of its directives, then those that replace some of them: of options, sbatch takes the last."""
    allocation, keys = plan.allocation, frozenset(script.keys)
    made = (
        ({"nodes"}, [f"--nodes={allocation.nodes}"]),
        ({"ranks"}, [f"--ntasks-per-node={allocation.ranks}"]),
        ({"cpus"}, [f"--cpus-per-task={max(1, allocation.cpus // allocation.ranks)}"]),
        ({"mem", "mem_per_node", "mem_per_cpu"}, _memory(allocation)),
        ({"gpus", "gpu_type"}, _gpus(allocation, plan.site.gpu_option)),
        ({"time"}, _limit(allocation)),
    )
    sizes = [option for its, options in made if its & keys for option in options]
    queue = [option for option in _queue(allocation) if option[2:].partition("=")[0].replace("-", "_") in keys]
    return [*script.options, *sizes, *queue]


def _log_pattern(plan: Plan) -> str:
    """Where job.sh's own output goes, in sbatch's escapes.

    A backslash anywhere switches `%` off for the whole pattern, so tasks then share one file. They do too where
    Slurm's indices are not theirs: job.sh then writes to files of their own, and only Slurm's words are left.
    """
    log = str(RunDirectory(Path(plan.directory)).scheduler_log())
    if "\\" in log:
        return log.replace("\\", "\\\\")
    escaped = log.replace("%", "%%")
    return escaped if plan.array is None or plan.array.offsets else escaped.removesuffix(".log") + "-%a.log"


def _memory(allocation: Allocation) -> list[str]:
    return (
        []
        if allocation.memory_mb is None
        else [f"--mem={allocation.memory_mb}M" if allocation.memory_mb else "--mem=0"]
    )


def _gpus(allocation: Allocation, option: str) -> list[str]:
    if not allocation.gpus:
        return []
    kind = f"{allocation.gpu_type}:" if allocation.gpu_type else ""
    return [
        f"--{option}={kind}{allocation.gpus}" if option == "gpus-per-node" else f"--gres=gpu:{kind}{allocation.gpus}"
    ]


def _queue(allocation: Allocation) -> list[str]:
    """Where it queues, and what it says about itself; only what was asked for."""
    asked = {
        "account": allocation.account,
        "partition": allocation.partition,
        "qos": allocation.qos,
        "reservation": allocation.reservation,
        "constraint": "&".join(allocation.constraint),
        "licenses": ",".join(allocation.licenses),
        "comment": allocation.comment,
        "mail-user": allocation.mail_user,
        "mail-type": ",".join(allocation.mail_type),
    }
    options = [f"--{name}={value}" for name, value in asked.items() if value]
    return [*options, "--exclusive"] if allocation.exclusive else options


def _array(plan: Plan, task: str) -> list[str]:
    if task:
        return [f"--array={task}"]
    if plan.array is None:
        return []
    throttle = f"%{plan.array.parallel}" if plan.array.parallel else ""
    return [f"--array={compress(plan.array.indices)}{throttle}"]


ACCOUNT_SECONDS = 30 * 24 * 3600
"""How far back `sacct` looks at most: job ids wrap, and some sites refuse a wide window."""

_NO_ACCOUNTS = r"(?i)accounting storage is disabled"
_GONE = r"Invalid job id|already completing or completed|Job/step already|Invalid job array"


class Slurm(CommandScheduler):
    name = "slurm"
    title = "Slurm"
    server = "Slurm's controller"
    identity = "SLURM_CONF"
    survey = "sinfo"
    cancel_command = ("scancel",)
    release_command = ("scontrol", "release")
    id_pattern = r"^(\d+)(?:;[\w.-]+)?$"
    gone = re.compile(rf"^$|{_GONE}")
    # If tasks of an array fare differently, `scontrol` has a line for each fate, also for that of released ones.
    begun = re.compile(rf"{_GONE}|no longer pending execution|Job has already finished|: No error$")
    reasons = parse.REASONS
    job_changes = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "TMPDIR")

    def submission(
        self, plan: Plan, token: str, environment: Variables, *, after: str = "", task: str = "", held: bool = False
    ) -> SubmitCommand:
        """The `sbatch` command that submits `plan`'s job.sh under `token`."""
        # One option for all that it waits for, because sbatch takes the last.
        of_script = plan.script.dependency if plan.script else ""
        if after and "?" in of_script:
            message = f"Slurm cannot combine `--dependency={of_script}` of the script with another dependency"
            raise UsageError(message, hint="replace each `?` by a comma, or submit without `--after`")
        awaited = ",".join(filter(None, (of_script, f"afterany:{after}" if after else "")))
        waits = (f"--dependency={awaited}",) if awaited else ()
        hold = ("--hold",) if held else ()
        options = (*_options(plan, token, task), *waits, *hold, *plan.allocation.extra)
        argv = ("sbatch", "--parsable", *options, f"{plan.directory}/job.sh", token)
        return SubmitCommand(argv, scrub(environment), umask=MODES[plan.share].umask)

    def interactive(
        self, plan: Plan, token: str, environment: Variables, *, now: bool, has_terminal: bool
    ) -> SubmitCommand:
        """`salloc` has all nodes, and as many tasks on each as there are ranks, so that `srun` in it starts those."""
        allocation = plan.allocation
        tasks = allocation.ranks if allocation.cpus >= allocation.ranks else 1
        argv = (
            "salloc",
            "--quiet",
            f"--job-name={job_name(plan.name, token)}",
            *_resources(plan, tasks=tasks),
            *_queue(allocation),
            *(("--immediate",) if now else ()),
            *allocation.extra,
            *_step(_step_cpus(plan, allocation.cpus // tasks * tasks), has_terminal=has_terminal),
            "/bin/bash",
            plan.directory + "/job.sh",
            token,
        )
        return SubmitCommand(argv, scrub(environment), umask=MODES[plan.share].umask)

    def join(self, job: str, host: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:
        return (
            *_step(("--cpus-per-task=1",), has_terminal=has_terminal, more=(f"--jobid={job}", f"--nodelist={host}")),
            *words,
        )

    def errand(self, plan: Plan, host: str, words: Sequence[str]) -> tuple[str, ...]:
        """`words` on that node, in a job that has one core and no GPU."""
        asked = plan.allocation._replace(exclusive=False, mail_type=(), mail_user=None, constraint=())
        size = ("--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--mem={ERRAND_MEMORY_MB}M", "--gres=none")
        where = (f"--nodelist={host}", f"--time={walltime(ERRAND_SECONDS)}", f"--chdir={plan.directory}")
        name = f"--job-name={job_name(plan.name, f'{plan.run}-errand')}"
        return ("srun", "--quiet", name, *size, *where, *_queue(asked), "--export=ALL", *words)

    def excluding(self, plan: Plan) -> tuple[str, ...]:
        """The command replaces the list of the submission, and repeats its nodes."""
        words = ["", *(plan.script.options if plan.script else ()), *plan.allocation.extra, ""]
        excluded = re.findall("\0(?:--exclude[=\0]|-x\0?)([^\0]+)", "\0".join(words))
        hosts = ",".join([*excluded[-1:], successor_commands.HOSTS])
        return ("scontrol", "update", f"JobId={successor_commands.JOB}", f"ExcNodeList={hosts}")

    def submit(self, submission: SubmitCommand) -> str:
        environment = dict(submission.environment)
        if self.identity in os.environ:
            environment.setdefault(self.identity, os.environ[self.identity])
        result = self.deliver(submission.argv, environment, submission.umask)
        job = successor_commands.new_id(result.stdout, self.id_pattern)
        if job is None:
            raise self.failure("sbatch", result)
        return job

    def outcome(self, result: shell.Result) -> SubmitOutcome:
        return parse.submit_outcome(result.stderr) if result.status > 0 else SubmitOutcome.UNCERTAIN

    def find(self, token: str, since: float | None = None) -> str | None:
        for job, name in parse.named(self._squeue(parse.NAME_FORMAT)):
            if any(names_token(text, token) for text in name.split(parse.SEPARATOR)):
                return job
        accounts = self._sacct(("JobID", "JobName"), since)
        if accounts is None:
            raise SchedulerUnreachable("`sacct` does not answer; the job may or may not have been accepted")
        ids = [job for job, name in parse.named(accounts) if names_token(name, token)]
        return ids[-1] if ids else None

    def release(self, ids: Sequence[str]) -> None:
        super().release([",".join(ids)])

    def reason_word(self, reason: str) -> str:
        return reason.strip().strip("()").replace(" ", "_").rstrip("_") or "None"

    def ask(self, ids: Sequence[str], since: float | None) -> dict[str, str]:
        texts = {"squeue": self._squeue(parse.JOB_FORMAT)}
        if forgotten := self.uncovered(ids, self.jobs_in(texts)):
            texts["sacct"] = self._sacct(parse.ACCOUNT_FIELDS, since, forgotten) or ""
        return texts

    def read(self, texts: Mapping[str, str]) -> dict[JobKey, Job]:
        """Both answers as one; squeue's counts, because sacct lags behind."""
        rows = [*parse.accounting(texts.get("sacct", "")), *parse.queue(texts.get("squeue", ""))]
        return {(job.id, job.task): job for job in rows}

    def poll_others(self, users: Sequence[str]) -> Mapping[JobKey, Job]:
        return self.read({"squeue": self._squeue(parse.JOB_FORMAT, ",".join(users))})

    def split(self, job: str) -> JobKey:
        number, _, task = job.partition("_")
        return number, int(task) if task else None

    def _squeue(self, fields: str, users: str = "") -> str:
        # By user, not by id: one id that squeue has forgotten would make it fail for all.
        who = f"--user={users or os.getuid()}"
        listed = self.answer(("squeue", "--noheader", who, "--states=all", f"--Format={fields}"))
        if listed.strip() and parse.SEPARATOR not in listed:
            # Unread, every job would look forgotten.
            raise SchedulerUnreachable("this `squeue` cannot divide its fields; Slurm 20.11 or later is needed")
        return listed

    def _sacct(self, fields: Sequence[str], since: float | None, ids: Sequence[str] = ()) -> str | None:
        """The jobs in the accounting database; empty without accounting, None if it cannot be read now."""
        # A minute more, for clocks that differ. Relative, so that no time zone comes between us.
        window = ACCOUNT_SECONDS if since is None else min(max(int(time.time() - since), 0) + 60, ACCOUNT_SECONDS)
        jobs = [f"--jobs={','.join(ids)}"] if ids else []
        argv = [
            "sacct",
            "--allocations",
            "--parsable2",
            "--noheader",
            f"--delimiter={parse.SEPARATOR}",
            f"--user={os.getuid()}",
            f"--starttime=now-{window}seconds",
            f"--format={','.join(fields)}",
            *jobs,
        ]
        try:
            result = self.query(argv)
        except (MissingProgramError, SchedulerUnreachable) as error:
            return "" if isinstance(error, MissingProgramError) else None
        if result.status:
            return "" if re.search(_NO_ACCOUNTS, result.stderr) else None
        return result.stdout

    def query_environment(self) -> dict[str, str]:
        """Ours, without the user's own formats."""
        return {**scrub(os.environ), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


SCHEDULER = Slurm
