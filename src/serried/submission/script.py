"""The files of a run directory for compute nodes: job.sh and setup.sh from the plan, agent.pyz, library.zip.

The two archives hold Serried's own code, as source and as byte code of the submitting Python. Compute nodes run
agent.pyz. Ranks import `serried.train` from library.zip, as of submit, whatever their environment has installed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import io
import marshal
import os
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from serried import schedulers
from serried.base import NamedTuple, files
from serried.base.files import MODES
from serried.schedulers.interface import Script
from serried.schema.layout import state_directory
from serried.schema.plan import Plan, UserScript
from serried.submission import environments

if TYPE_CHECKING:
    from types import CodeType


BEGINNING = Template("""\
umask $umask
export SERRIED_RUN_DIR=$directory
cd -- "$$SERRIED_RUN_DIR" || exit 70
$cleanup
for serried_python in $pythons ''; do
  [[ $$("$$serried_python" -V 2>/dev/null) =~ ^Python\\ 3\\.(9|[1-9][0-9]+)\\. ]] && break
done
if [[ -z $$serried_python ]]; then
  echo "serried: no Python 3.9 or later on $$HOSTNAME: name one as 'python' in the cluster's profile" >&2
  exit 70
fi
serried_agent=("$$serried_python" -I -S "$$SERRIED_RUN_DIR/agent.pyz")
""")

BODY = Template("""\
#!/bin/bash
# $command
#
# Run $run, written by Serried. plan.json beside this file describes the run. This script claims the attempt,
# starts one agent per node and waits for them. The agents record how the attempt ended, and the script follows.
# shellcheck disable=SC2016 # a run directory may have any name

serried_token=$${1:?usage: job.sh TOKEN}
$of_part${beginning}$draw$who
$check$functions
# Signals are passed to the head agent. The script waits, because bash runs a trap at once only during `wait`.
serried_head=''
serried_final=''
$traps$environment
$loop"$${serried_agent[@]}" head "$${serried_who[@]}"$head_options -- $launcher&
serried_head=$$!
[[ -n $$serried_final ]] && kill -TERM "$$serried_head"
while kill -0 "$$serried_head" 2>/dev/null; do wait "$$serried_head"; done
wait "$$serried_head"
serried_status=$$?
serried_head=''
[[ $$serried_status == 75 ]] && exit 0 # the attempt was refused, and the head has printed the reason

# From here on a signal is too late to change how the attempt ended, and must not stop the report.
$late$script_ended# If the run directory is unavailable, so is the agent. The script retries for minutes.
serried_conclude() {
  local serried_try
  for ((serried_try = 0; serried_try < 60; serried_try++)); do
    serried_word=$$("$${serried_agent[@]}" finish "$${serried_who[@]}" --final "$$serried_final")
    [[ -n $$serried_word ]] && return
    sleep 5
  done
}
serried_conclude
${end_of_loop}if [[ $$serried_word == requeue ]]; then
${again}fi
case $$serried_word in
  done) exit 0 ;;
  next) exit 85 ;; # saved; the next job of this run continues
  fail\\ *) exit "$${serried_word#fail }" ;;
  *) exit 70 ;;
esac
""")

TRAPS = """\
trap 'serried_final=cancel; [[ -n $serried_head ]] && kill -TERM "$serried_head" 2>/dev/null' TERM
trap '[[ -n $serried_head ]] && kill -USR1 "$serried_head" 2>/dev/null' USR1
"""

LATE = "trap '' TERM USR1\n"

DRAW = Template("""\

# This job runs its own trial, or the one that it ran before, and then draws others, whose jobs still wait.
serried_own=$$serried_index serried_trial='' serried_longest=0 serried_began=$$SECONDS
serried_draw() {
  local serried_answer serried_took=$$((SECONDS - serried_began))
  ((serried_longest = serried_took > serried_longest ? serried_took : serried_longest))
  serried_answer=$$("$${serried_agent[@]}" draw "$$serried_token" --job $job --task "$$serried_own" \\
    --ended "$$serried_trial" --longest "$$serried_longest"$head_options) || return 70
$cancel  [[ $$serried_answer == [0-9]* ]] || return 1
  serried_trial=$$serried_answer serried_began=$$SECONDS
  export $variable=$$serried_trial
  $who
}
serried_draw || exit $$(($$? == 1 ? 0 : 70))
""")

LOOP = "while :; do\n"

LATE_IN_LOOP = """\
serried_late=''
trap 'serried_late=cancel' TERM
trap '' USR1
"""

END_OF_LOOP = f"""\
[[ -z $serried_final && -z $serried_late && $serried_word == @(done|fail *) ]] || break
serried_draw || break
{TRAPS}[[ -n $serried_late ]] && serried_final=cancel
done
trap '' TERM USR1
"""

OF_PART = Template("""\
# This array is several jobs, which number their tasks from 0. The token contains the offset of this job,
# `k3f9q2_1000-1`, or its task, `k3f9q2.1007-2`.
serried_task=$$$index
serried_index=$${serried_token#*[._]} && serried_index=$${serried_index%-*}
[[ $$serried_token == *_* ]] && serried_index=$$((serried_index + serried_task))
export $variable=$$serried_index
""")

SHELL = Template("""\
#!/bin/bash
# $command
#
# An interactive job, $run, written by Serried. plan.json beside this file describes the job.
# shellcheck disable=SC2016 # a run directory may have any name

${beginning}${environment}exec "$${serried_agent[@]}" shell
""")

ACTIVATE = """
# The environment of the ranks. A failure ends the attempt, with the output of the failed command.
serried_output=$(mktemp 2>/dev/null || mktemp -p /tmp)
serried_unable() {
  local serried_words
  serried_words=$(grep . "$serried_output" | head -n 3 | paste -sd ' ')
  "${serried_agent[@]}" ROLE --problem "$1${serried_words:+: $serried_words}"
  exit
}
"""

SETUP = Template("""\
#!/bin/bash
# The lines of 'setup', run $run. Each node's agent runs this script and continues in this shell, so that ranks
# inherit its limits.

serried_agent=("$$@")
serried_log=$$(mktemp 2>/dev/null || mktemp -p /tmp)
exec 3>&2
serried_continue() {
  export SERRIED_SETUP=$$1
  trap - EXIT ERR
  cat "$$serried_log" >&3
  rm -f "$$serried_log"
  exec "$${serried_agent[@]}" 2>&3 3>&-
}
serried_failed() { # a line failed, or `setup` has left this shell
  serried_continue "$${serried_line:-it} ended with status $$?: $$(grep . "$$serried_log" | tail -n 3 | paste -sd ' ')"
}
trap serried_failed EXIT
trap 'serried_line="\\`$$BASH_COMMAND\\`"' ERR
${find}set -eE
# shellcheck disable=all # the user's lines follow
{ : # the lines may be empty
$lines
} 2>"$$serried_log"
set +eE
serried_continue ok
""")


def render(plan: Plan, *, python: str, command: Sequence[str] = ()) -> str:
    """job.sh for `plan`, submitted by `command`. `python` runs the agent on nodes without a Python of their own.

    Raises ValueError for a newline in a path or a word of `command`, which no comment can contain.
    """
    its = schedulers.script(plan.site.inside or plan.site.scheduler)
    fragment = its.INSIDE if plan.site.inside else its.FRAGMENT
    array = plan.array
    if array is not None and array.offsets:  # several jobs
        fragment = fragment._replace(
            of_part=OF_PART.substitute(index=fragment.task_index, variable=fragment.index_variable),
            cleanup=fragment.own_log + fragment.cleanup,
            functions=fragment.functions.replace(f"${fragment.task_index}", "$serried_task"),
        )
    elif plan.draws:  # the scheduler's own index stays in `serried_own`
        fragment = fragment._replace(
            of_part=f"serried_index=${fragment.task_index}\n",
            functions=fragment.functions.replace(f"${fragment.task_index}", "$serried_own"),
        )
    launcher = its.launcher(plan)
    head_options = f" {fragment.head_options}" if fragment.head_options else ""
    who = f'serried_who=("$serried_token" --job {fragment.job}'
    task = f" --task {fragment.task}" if array else ""
    of_loop = {"loop": "", "late": LATE, "end_of_loop": "", "draw": "", "who": f"{who}{task})"}
    if plan.draws:
        draw = DRAW.substitute(
            job=fragment.job,
            head_options=head_options,
            cancel=fragment.cancel_idle,
            variable=fragment.index_variable,
            who=f'{who} --task "$serried_trial")',
        )
        of_loop = {"loop": LOOP, "late": LATE_IN_LOOP, "end_of_loop": END_OF_LOOP, "draw": draw, "who": ""}
    # For an array that is several jobs: from the start, or because a task continues in a job of its own.
    whole_array = its.whole_array(array) if array is not None and (array.offsets or plan.has_links) else ""
    return BODY.substitute(
        command=_comment(plan, command),
        run=plan.run,
        beginning=_beginning(plan, fragment.cleanup, python),
        of_part=fragment.of_part,
        check=fragment.check,
        script_ended=fragment.script_ended if plan.script else "",
        functions=fragment.functions,
        traps=TRAPS,
        environment=whole_array + _activate(plan) + (_of_script(its, plan, plan.script) if plan.script else ""),
        again=fragment.again,
        head_options=head_options,
        **of_loop,
        launcher=f"{launcher} " if launcher else "",
    )


LOGIN = """
[[ -r /etc/profile ]] && . /etc/profile
for serried_profile in ~/.bash_profile ~/.bash_login ~/.profile; do
  [[ -r $serried_profile ]] && . "$serried_profile" && break
done
"""
"""The environment of a login shell, for a script that inherits none."""


def _of_script(its: Script, plan: Plan, script: UserScript) -> str:
    lines = its.script_lines(plan, script)
    if not script.has_login:
        return lines
    inherit = plan.environment.inherit
    exported = [*(() if isinstance(inherit, str) else inherit), *plan.environment.env]
    login = LOGIN
    if exported and schedulers.traits(script.dialect).sets_exports_last:
        login = f'\nserried_exported=$(declare -p {" ".join(exported)} 2>/dev/null){LOGIN}eval "$serried_exported"\n'
    return f"\numask {script.umask:03o}{login}{lines}umask {MODES[plan.share].umask:03o}\n"


def render_shell(plan: Plan, *, python: str, command: Sequence[str] = ()) -> str:
    """The script of an interactive job: the same up to the agents, and then a shell. Raises ValueError."""
    return SHELL.substitute(
        command=_comment(plan, command),
        run=plan.run,
        beginning=_beginning(plan, schedulers.script(plan.site.scheduler).SHELL, python),
        environment=_activate(plan, "shell"),
    )


def render_join(plan: Plan, attempt: int, task: int | None, *, python: str) -> str:
    """Lines for `bash -c` on a node where `plan` runs: a shell beside the ranks, or the command in the arguments."""
    which = f"--join {attempt}" + ("" if task is None else f" --task {task}")
    environment = _activate(plan, f"shell {which}")
    return f'{_beginning(plan, "", python)}{environment}exec "${{serried_agent[@]}}" shell {which} -- "$@"\n'


def render_attach(plan: Plan, words: Sequence[str], *, python: str) -> str:
    """Lines for `bash -c` on a node where `plan` runs: the agent's role `attach`, and the command in the arguments."""
    return f'{_beginning(plan, "", python)}exec "${{serried_agent[@]}}" attach {shlex.join(words)} -- "$@"\n'


def render_errand(plan: Plan, words: Sequence[str], *, python: str) -> str:
    """A script that runs a role of the agent on a node of `plan`, after its jobs have ended."""
    return f'#!/bin/bash\n{_beginning(plan, "", python)}exec "${{serried_agent[@]}}" {shlex.join(words)}\n'


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
        raise ValueError("a path contains a newline, which no comment of job.sh can contain")
    return text


def _activate(plan: Plan, role: str = 'fail-setup "${serried_who[@]}"') -> str:
    """The part of job.sh that makes the environment active; empty if everything is inherited.

    `role` is the role of the agent that receives the problem.
    """
    lines = environments.lines(plan.environment)
    return f'{ACTIVATE.replace("ROLE", role)}{lines}rm -f "$serried_output"\n' if lines else ""


def render_setup(plan: Plan) -> str | None:
    """setup.sh for `plan`, or None if the plan needs none."""
    lines = plan.environment.setup
    return SETUP.substitute(run=plan.run, find=environments.finder(lines), lines=lines) if lines else None


HOUSE = Path(__file__).parents[1]
AGENT, LIBRARY = ("agent", "base", "schema"), ("base", "schema", "train")
MAIN = HOUSE / "agent" / "__main__.py"
PACKAGE = HOUSE / "schema" / "library_init.py"
"""The module `serried` of a rank."""
STARTUP = HOUSE / "base" / "startup.py"
"""What Python runs first in a rank."""
UNCHECKED = (0b01).to_bytes(4, "little")
MARSHAL = 2
"""From version 3 on, the bytes depend on reference counts in this process, so each archive would differ."""
ALWAYS = (1980, 1, 1, 0, 0, 0)
"""The oldest date of a zip. The time of an installation would change the archive."""


class Content(NamedTuple):
    """An archive, known without being read: 1.4 MB that most runs share with an earlier one."""

    digest: str
    """SHA-256, in hex."""
    size: int
    read: Callable[[], bytes]

    @classmethod
    def of(cls, content: bytes) -> Content:
        return cls(hashlib.sha256(content).hexdigest(), len(content), lambda: content)


def agent() -> Content:
    empty = _pyc(compile("", "serried/__init__.py", "exec"), b"")
    package = [("serried/__init__.pyc", empty), ("serried/__init__.py", b"")]
    return _content(AGENT, lambda: [*_module("__main__.py", MAIN), *package])


def library() -> Content:
    return _content(LIBRARY, lambda: [*_module("serried/__init__.py", PACKAGE), *_module("sitecustomize.py", STARTUP)])


def put(content: Content, path: Path, folder: Path, modes: files.Modes) -> None:
    """Store `content` in `folder` under a name with its digest, and let `path` be a link to that file.

    The link comes first. So a cleanup either sees the link, or deletes the file before this function checks for it. If
    another user owns `folder` or its parent, or can write there, `path` becomes a file instead.
    """
    stored = folder / f"{path.stem}-{content.digest[:16]}{path.suffix}"
    try:
        files.make_directory(folder.parent, modes.directory)
        files.check_ours_alone(folder.parent)
        files.make_ours_alone(folder, modes.directory)
        path.symlink_to(stored)
        if not _is_stored(stored, content.size):
            files.write_bytes(stored, content.read(), modes.file)
    except PermissionError:
        path.unlink(missing_ok=True)
        files.write_bytes(path, content.read(), modes.file)


def _is_stored(path: Path, size: int) -> bool:
    """The file exists. Sets its time to now, because sites and Serried delete files by age.

    A file that another user wrote or can write does not count: it would run as this user.
    """
    with contextlib.suppress(FileNotFoundError):
        state = path.lstat()
        if stat.S_ISREG(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022:
            os.utime(path)
            return path.stat().st_size == size
    return False


def _content(rooms: tuple[str, ...], entries: Callable[[], list[tuple[str, bytes]]]) -> Content:
    kept = state_directory(os.environ) / "cache" / f"{'-'.join(rooms)}-{_digest([str(HOUSE)]).hex()[:12]}.zip"
    before = _digest([*_states(rooms), _state(PACKAGE)])
    content = _kept(kept, before)
    if content is None:
        modules = [path for room in rooms for path in sorted((HOUSE / room).rglob("*.py")) if path != PACKAGE]
        named = [(f"serried/{module.relative_to(HOUSE).as_posix()}", module) for module in modules]
        packed = _packed([*entries(), *(entry for name, module in named for entry in _module(name, module))])
        content = Content.of(packed)
        with contextlib.suppress(OSError):  # a full home: the archive is packed each time
            files.make_directory(kept.parent)
            files.write_bytes(kept, packed + bytes.fromhex(content.digest) + before)
    return content


def _states(rooms: tuple[str, ...]) -> list[str]:
    """The state of each module (a program cannot set a ctime), and the version of its byte code."""
    known = [importlib.util.cache_from_source(""), importlib.util.MAGIC_NUMBER.hex()]
    folders = [str(HOUSE / room) for room in rooms]
    for folder in folders:  # grows meanwhile
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.endswith(".py"):
                    known.append(_state(entry))
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return known


def _state(module: Path | os.DirEntry[str]) -> str:
    state = module.stat()
    return f"{os.fspath(module)} {state.st_ino} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"


def _digest(lines: list[str]) -> bytes:
    return hashlib.sha256("\0".join(lines).encode("utf-8", "surrogateescape")).digest()


def _kept(path: Path, before: bytes) -> Content | None:
    """The archive of an earlier run, if its last bytes show that no module has changed since."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) - 2 * len(before)
            file.seek(max(size, 0))
            digest, known = file.read(len(before)), file.read()
    except OSError:
        return None

    def read() -> bytes:
        content = path.read_bytes()[:size]
        if hashlib.sha256(content).digest() != digest:  # another process has replaced it since
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return content

    return Content(digest.hex(), size, read) if known == before else None


def _packed(entries: list[tuple[str, bytes]]) -> bytes:
    """Stored, not deflated: the files are small, and a node would have to inflate twenty modules.

    Compiling them would take longer than running them. A Python of another version ignores the byte code and reads the
    source.
    """
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries:
            entry = zipfile.ZipInfo(name, date_time=ALWAYS)
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def _module(name: str, path: Path) -> Iterator[tuple[str, bytes]]:
    source = path.read_bytes()
    # Compiled at most once, because Python keeps the result. It does not compare the .pyc of a zip with the source,
    # because the zip never changes (PEP 552).
    yield f"{name}c", _pyc(SourceFileLoader(name, str(path)).get_code(name), source)
    yield name, source


def _pyc(code: CodeType | None, source: bytes) -> bytes:
    return importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source) + marshal.dumps(code, MARSHAL)
