"""The text of job.sh, from the plan alone."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from string import Template

from serried import schedulers
from serried.fs.files import MODES
from serried.plan import Plan
from serried.schedulers.interface import Fragment
from serried.script.environment import activate

BEGINNING = Template("""\
umask $umask
export SERRIED_RUN_DIR=$directory
cd -- "$$SERRIED_RUN_DIR" || exit 70
$cleanup
for python in $pythons ''; do
  "$$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
done
if [[ -z $$python ]]; then
  echo "serried: no Python 3.9 or later on $$HOSTNAME: name one as 'python' in the cluster's profile" >&2
  exit 70
fi
agent=("$$python" -I -S "$$SERRIED_RUN_DIR/agent.pyz")
""")

BODY = Template("""\
#!/bin/bash
# $command
#
# Run $run, written by Serried. plan.json beside this file says what runs. This script claims the attempt,
# starts one agent per node, waits for them, has them say how it ended, and does as they say.
# shellcheck disable=SC2016 # a run directory may be called anything

token=$${1:?usage: job.sh TOKEN}
$of_part${beginning}who=("$$token" --job $job$task)
$check$functions
# Signals go on to the head agent. It is waited for, because bash runs a trap at once only during `wait`.
head=''
final=''
trap 'final=cancel; [[ -n $$head ]] && kill -TERM "$$head" 2>/dev/null' TERM
trap '[[ -n $$head ]] && kill -USR1 "$$head" 2>/dev/null' USR1
$environment
"$${agent[@]}" head "$${who[@]}"$head_options -- $launcher&
head=$$!
[[ -n $$final ]] && kill -TERM "$$head"
while kill -0 "$$head" 2>/dev/null; do wait "$$head"; done
wait "$$head"
status=$$?
head=''
[[ $$status == 75 ]] && exit 0 # this attempt is not to be, and the head has said why

# A signal from here on comes too late to change how it ended, and must not keep that from being told.
trap '' TERM USR1
# A run directory that is away takes the agent with it: it is tried for minutes.
conclude() {
  local try
  for ((try = 0; try < 60; try++)); do
    word=$$("$${agent[@]}" finish "$${who[@]}" --final "$$final")
    [[ -n $$word ]] && return
    sleep 5
  done
}
conclude
if [[ $$word == requeue ]]; then
${again}fi
case $$word in
  done) exit 0 ;;
  next) exit 85 ;; # saved; the next job of this run goes on
  fail\\ *) exit "$${word#fail }" ;;
  *) exit 70 ;;
esac
""")


OF_PART = Template("""\
# This array is several jobs, which number their tasks from 0. The token says what this job adds: `k3f9q2_1000-1`,
# or which task it is for: `k3f9q2.1007-2`.
task=$$$index
index=$${token#*[._]} && index=$${index%-*}
[[ $$token == *_* ]] && index=$$((index + task))
export $variable=$$index
""")


SHELL = Template("""\
#!/bin/bash
# $command
#
# An interactive job, $run, written by Serried. plan.json beside this file says what it is.
# shellcheck disable=SC2016 # a run directory may be called anything

${beginning}${environment}exec "$${agent[@]}" shell
""")


def render(plan: Plan, *, python: str, command: Sequence[str] = ()) -> str:
    """job.sh for `plan`, submitted by `command`. `python` runs the agent where a node has none of its own.

    Raises ValueError where a path or a word of `command` holds a newline: no comment could carry it.
    """
    its = schedulers.script(plan.site.inside or plan.site.scheduler)
    fragment = its.INSIDE if plan.site.inside else its.FRAGMENT
    if plan.array is not None and plan.array.offsets:
        fragment = _of_part(fragment)
    start = its.launcher(plan)
    return BODY.substitute(
        command=_comment(plan, command),
        run=plan.run,
        beginning=_beginning(plan, fragment.cleanup, python),
        job=fragment.job,
        of_part=fragment.of_part,
        task=f" --task {fragment.task}" if plan.array else "",
        check=fragment.check,
        functions=fragment.functions,
        environment=activate(plan),
        again=fragment.again,
        head_options=f" {fragment.head_options}" if fragment.head_options else "",
        launcher=f"{start} " if start else "",
    )


def _of_part(fragment: Fragment) -> Fragment:
    """The fragment for an array in parts."""
    lines = OF_PART.substitute(index=fragment.index, variable=fragment.index_variable)
    return dataclasses.replace(
        fragment,
        of_part=lines,
        cleanup=fragment.own_log + fragment.cleanup,
        functions=fragment.functions.replace(f"${fragment.index}", "$task"),
    )


def render_shell(plan: Plan, *, python: str, command: Sequence[str] = ()) -> str:
    """The same for an interactive job: everything up to the agents, and then a shell. Raises ValueError."""
    return SHELL.substitute(
        command=_comment(plan, command),
        run=plan.run,
        beginning=_beginning(plan, schedulers.script(plan.site.scheduler).SHELL, python),
        environment=activate(plan, "shell"),
    )


def render_join(plan: Plan, attempt: int, task: int | None, *, python: str) -> str:
    """Lines for `bash -c` on a node where `plan` runs, with a command as arguments or none: a shell beside it."""
    which = f"--join {attempt}" + ("" if task is None else f" --task {task}")
    environment = activate(plan, f"shell {which}")
    return f'{_beginning(plan, "", python)}{environment}exec "${{agent[@]}}" shell {which} -- "$@"\n'


def render_errand(plan: Plan, words: Sequence[str], *, python: str) -> str:
    """A script that runs a role of the agent on a node of `plan`, when its jobs have ended."""
    return f'#!/bin/bash\n{_beginning(plan, "", python)}exec "${{agent[@]}}" {shlex.join(words)}\n'


def _beginning(plan: Plan, cleanup: str, python: str) -> str:
    candidates = [plan.site.python] if plan.site.python else ["/usr/bin/python3", "python3", python]
    return BEGINNING.substitute(
        umask=f"{MODES[plan.share].umask:03o}",
        directory=shlex.quote(plan.directory),
        cleanup=cleanup,
        pythons=shlex.join(dict.fromkeys(candidates)),
    )


def _comment(plan: Plan, command: Sequence[str]) -> str:
    text = shlex.join(command) or "bash job.sh TOKEN"
    if "\n" in text + plan.directory:
        raise ValueError("job.sh cannot say a path with a newline")
    return text
