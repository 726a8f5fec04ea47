"""What runs in place of a launcher in a job script: the real launcher, with a rank program before the user's program.

`agent.pyz launch NAME ARGUMENT…` becomes the real launcher by exec. So process id, signals, input, terminal and exit
status are those of the launcher. A line that is not understood gets the real launcher as it is, with a note. On a
machine without the script's job there is no srun to become: `local_srun` starts the tasks.

Each launch has an id, "1", "2", … in the order of the script, and a document in the folder of launches:

    1.json             launch, name, argv, program, kind, untouched, directory, host, pid, time, call, within
    1/rank-3/1.json    launch 1.1: the first one that rank 3 of launch 1 started itself
    failures/CALL.json a launch or a Python program that failed: call, status, handled, read, signalled, name, argv,
                       source, line, output, within, directory, host, pid, time, monotonic

`call` connects the two. A process that creates a file exclusively has its id, on a shared file system too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from serried.base import files
from serried.schema import launchers, names
from serried.schema.launchers import INTERPRETER, LAUNCHERS, LaunchLine, NoLaunchError, NotUnderstoodError
from serried.schema.layout import AttemptDirectory

SHELL = "/bin/sh"
NOT_FOUND = 127
NOT_EXECUTABLE = 126
HIDDEN = "__serried_"
"""Prefix of the variables of the bash functions, which `set -a` exports."""
PRESET = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "PET_USE_ENV")
"""Variables by which torchrun gets options that change its command line."""


class LaunchPlace(NamedTuple):
    """Where this launch runs, from the environment of the script."""

    folder: Path
    """With `bin/` and `rank`."""
    launches: Path
    launch: str
    """The launch that started this process; empty in the script itself."""
    rank: str
    """This process's rank in it."""

    @classmethod
    def of(cls, environ: Mapping[str, str], folder: str) -> "Optional[LaunchPlace]":
        """None outside the job of the script, such as in a job that the script submitted."""
        launches = environ.get(names.LAUNCHES, "")
        variable, _, job = environ.get(names.SCRIPT_JOB, "").partition("=")
        is_another_job = names.is_in_another_job(environ) or (variable and environ.get(variable, "") != job)
        if not launches or is_another_job:
            return None
        return cls(Path(folder), Path(launches), environ.get(names.LAUNCH, ""), environ.get(names.LAUNCH_RANK, ""))

    @property
    def own(self) -> Path:
        """The folder of the documents that this process may create."""
        return self.launches / Path(*self.launch.split(".")) / f"rank-{self.rank}" if self.launch else self.launches


class Call(NamedTuple):
    name: str
    real: str
    """The path of the real launcher."""
    argv: List[str]
    interpreter: str
    """The Python that runs the real launcher, if not that of its own first line."""
    tag: str
    """Names this call in the record of a failure."""


def main(arguments: List[str]) -> int:
    """`launch FOLDER [--call TAG] [--with PYTHON] NAME ARGUMENT…`: returns only if the launcher cannot be started."""
    folder, *arguments = arguments
    options: Dict[str, str] = {}
    while arguments and arguments[0] in ("--call", "--with"):
        options[arguments[0]] = arguments[1]
        arguments = arguments[2:]
    name, argv = arguments[0], arguments[1:]
    for variable in [variable for variable in os.environ if variable.startswith(HIDDEN)]:
        del os.environ[variable]
    called = os.environ.pop(names.LAUNCH_CALL, "")
    tag = options.get("--call") or called
    place = LaunchPlace.of(os.environ, folder)
    real = name if "/" in name else files.find_on_path(name, os.environ.get("PATH", os.defpath), Path(folder, "bin"))
    name = os.path.basename(name)  # noqa: PTH119
    if place and name == os.environ.get(names.STAND_INS):
        status = _stand_in(place, Call(name, real or name, argv, "", tag))
        if status is not None:
            return status
    if real is None:
        print(f"{name}: command not found", file=sys.stderr)
        return NOT_FOUND
    with_ = options.get("--with", "")
    rest = _intercepted(place, Call(name, real, argv, with_, tag)) if place else None
    command = [*([with_] if with_ else []), real, *(argv if rest is None else rest)]
    try:
        os.execv(command[0], [with_ or name, *command[1:]])  # noqa: S606 - no shell is the point
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without a first line, which shells run by themselves
            os.execv(SHELL, [SHELL, *command])  # noqa: S606
        print(f"{name}: {real}: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE


def outside(arguments: List[str]) -> int:
    """`outside FOLDER NAME ARGUMENT…`: become a command that starts another job, without what is Serried's.

    `outside` alone prints lines of bash that make the environment of another job what it would be without Serried.
    """
    known = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    environment = names.without_run(known)
    if not arguments:
        changed = [name for name in known if known[name] != environment.get(name)]
        print(*(f"export {name}={shlex.quote(environment[name])}" for name in changed if name in environment), sep="\n")
        print(*(f"unset {name}" for name in changed if name not in environment), sep="\n")
        return 0
    folder, name, *argv = arguments
    real = files.find_on_path(name, environment.get("PATH", os.defpath), Path(folder, "bin"))
    if real is not None:
        os.execve(real, [name, *argv], environment)  # noqa: S606 - no shell is the point
    print(f"{name}: command not found", file=sys.stderr)
    return NOT_FOUND


def _intercepted(place: LaunchPlace, call: Call) -> Optional[List[str]]:
    """The arguments of the real launcher with the rank program among them; None to leave them as they are."""
    if str(place.folder / "rank") in call.argv:  # called by another launcher, as horovodrun calls mpirun
        return None
    try:
        line = _understood(call)
    except NoLaunchError:
        return None
    except NotUnderstoodError as reason:
        with contextlib.suppress(OSError):  # noted once in the whole attempt
            _create(place.launches / "notes" / f"{call.name}-{reason}".encode().hex()[:200])
            print(f"serried: {call.name}: {reason}; started without logs for its ranks", file=sys.stderr)
        _record(place, call, program=[], kind="", untouched=str(reason))
        return None
    launch = _record(place, call, program=line.program, kind=line.kind, untouched=None)
    if launch is None:
        return None
    mark = names.DETACHED if line.is_detached else "" if line.local_rank_index is None else str(line.local_rank_index)
    return [*line.options, str(place.folder / "rank"), f"{launch}@{mark}" if mark else launch, *line.program]


def _understood(call: Call) -> LaunchLine:
    """The line, with the user's program. Raises NotUnderstoodError or NoLaunchError."""
    line = launchers.split(call.name, call.argv)
    job = os.environ.get(names.SCRIPT_JOB, "").partition("=")[2]
    if line.job and job and line.job != job:
        raise NotUnderstoodError(f"job {line.job} is another job")
    preset = next((name for name in PRESET if os.environ.get(name)), "")
    if preset and line.kind == "torchrun":
        raise NotUnderstoodError(f"variable `{preset}`")
    program, *arguments = line.program
    if program == INTERPRETER:
        program = _interpreter(call)
    if files.find_program(program) is None:  # the launcher's message is better
        raise NotUnderstoodError(f"`{program}` is not a program on this node")
    return line._replace(program=[program, *arguments])


def _stand_in(place: LaunchPlace, call: Call) -> Optional[int]:
    """The status of srun on a machine without the script's job; None for a line that starts no tasks in this job."""
    from serried.agent.launchers import local_srun  # imported here: every start counts

    job = os.environ.get(names.SCRIPT_JOB, "").partition("=")[2]
    try:
        line = launchers.split(call.name, call.argv)
        if line.job not in ("", job):
            return None
        step = local_srun.parse(line.options, os.environ, os.uname().nodename)
    except NoLaunchError:
        return None
    except NotUnderstoodError as reason:
        return local_srun.refuse(str(reason))
    launch = _record(place, call, program=line.program, kind=line.kind, untouched=None)
    rank = [str(place.folder / "rank"), launch] if launch else []
    return local_srun.start(step, place.launches, [*rank, *line.program])


def _interpreter(call: Call) -> str:
    """The Python that runs this launcher, as its `sys.executable` is."""
    if call.interpreter or call.name not in LAUNCHERS:
        return call.interpreter or call.real
    try:
        with Path(call.real).open("rb") as file:
            lines = file.read(4096).decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    words = lines[0][2:].split() if lines and lines[0].startswith("#!") else []
    if words[:1] and os.path.basename(words[0]) == "env":  # noqa: PTH119
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    if words and words[0].endswith("/sh") and len(lines) > 1 and lines[1].startswith("'''exec' "):
        words = lines[1].split()[1:]  # pip's and conda's, for paths that are too long for a first line
        words[0] = words[0].strip('"')
    program = files.find_program(words[0]) if words else None
    if program is None or not os.path.basename(program).startswith("python"):  # noqa: PTH119
        raise NotUnderstoodError(f"`{call.real}` is not a Python script")
    return program


def _record(place: LaunchPlace, call: Call, **facts: Any) -> Optional[str]:
    """Create the document of a new launch. Returns its id; None if the folder cannot be written."""
    try:
        place.own.mkdir(parents=True, exist_ok=True)  # here, its FileExistsError is no taken number
        taken = [int(entry.stem) for entry in place.own.glob("*.json") if entry.stem.isdigit()]
        number = max(taken, default=0) + 1
        while True:
            launch = f"{place.launch}.{number}" if place.launch else str(number)
            document = {"launch": launch, "call": call.tag, "name": call.name, "argv": call.argv, **facts}
            try:
                _create(place.own / f"{number}.json", json.dumps({**document, **_circumstances(place)}))
            except FileExistsError:
                number += 1
            else:
                return launch
    except OSError as error:
        print(f"serried: cannot record a launch: {error}", file=sys.stderr)
        return None


def _circumstances(place: LaunchPlace) -> Dict[str, Any]:
    return {
        "within": {"launch": place.launch, "rank": place.rank} if place.launch else None,
        "directory": str(Path.cwd()),
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "time": time.time(),
    }


def _create(path: Path, text: str = "") -> None:
    """Raises FileExistsError. Readers see a torn document as absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(descriptor, text.encode() + b"\n")
    finally:
        os.close(descriptor)


def record_failure(arguments: Sequence[str]) -> int:
    """`record-failure FOLDER CALL STATUS HANDLED SIGNALLED SOURCE LINES NAME ARGUMENT…`, from the bash functions.

    LINES are those of the call, and of the calls of the functions around it. With the failure goes the size of the
    script's output, whose last lines at this time are those of the failure.
    """
    folder, call, status, handled, signalled, source, stack, name, *argv = arguments
    lines = [int(line) for line in stack.split() if line.isdigit()]
    place = LaunchPlace.of(os.environ, folder)
    if place is not None:
        output: Optional[int] = None
        with contextlib.suppress(OSError):
            output = AttemptDirectory(place.launches.parent).script_log.stat().st_size
        text: List[str] = []
        with contextlib.suppress(OSError):
            text = Path(source).read_text(encoding="utf-8", errors="replace").splitlines()
        read = name != launchers.REQUEUES and reads_status(text, [line for line in lines if line], name)
        document = {
            "call": call,
            "status": int(status),
            "handled": handled == "1" or read,
            "read": read,
            "signalled": signalled == "1",
            "source": source,
            "line": lines[0] if lines else 0,
            "name": name,
            "argv": argv,
            "output": output,
            **_circumstances(place),
            "monotonic": time.monotonic(),
        }
        with contextlib.suppress(OSError):
            _create(place.launches / "failures" / f"{call}.json", json.dumps(document))
    return 0


STATUS = ("$?", "${?", "PIPESTATUS")
_BACKGROUND = re.compile(r"(?<![&><|])&(?![&>])")
_WAIT = re.compile(r"""\bwait\s+[-$"'%\d]""")
_INVERTED = r"(?:^|[;&|({{]|\b(?:then|do|else)\b)\s*!\s+(?:\w+=\S*\s+)*(?:{name}|\$\S+)(?:[\s;&|)]|$)"


def reads_status(script: Sequence[str], lines: Sequence[int], name: str) -> bool:
    """Whether the script, given by its lines, uses the status of a call of `name`: `srun …; code=$?`, or `! srun …`.

    The failure of such a call is handled, whatever the script does about it. If the call is the last line of a
    function, the line after the call of the function counts. The status of a call in the background is that of
    `wait PID`; a `wait` alone has the status 0.
    """
    for line in lines:
        command, after = _command_at(script, line - 1)
        if any(mark in part for mark in STATUS for part in (command, after)):
            return True
        if re.search(_INVERTED.format(name=re.escape(name)), command):
            return True
        if _BACKGROUND.search(command) and any(map(_WAIT.search, script)):
            return True
        if not after.startswith("}"):
            return False
    return False


def _command_at(text: Sequence[str], index: int) -> Tuple[str, str]:
    """The lines of the command at `index`, with its continuations, and the next line that is no comment."""
    command = ""
    while index < len(text):
        command += text[index]
        index += 1
        if not command.endswith("\\"):
            break
    after = (line.strip() for line in text[index:])
    return command, next((line for line in after if line and not line.startswith("#")), "")
