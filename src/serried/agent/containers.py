"""The container that ranks run in: the runtime's argv, the variables inside, and the folders of the host.

The agent stays outside, with the scheduler, the journals and the other nodes. The runtime's process is the agent's
child, and the program is the runtime's. Paths are the same inside and outside, so no value needs a translation.
"""

from __future__ import annotations

import contextlib
import os
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from serried.agent.attempt import Attempt
from serried.agent.helper_process import AgentConnection, HelperProcess
from serried.agent.loop import Loop
from serried.agent.node_disk import shared_cache
from serried.agent.node_disk.folder import DATA, IMAGES, SCRATCH, Folder, remove_empty
from serried.base import files, locks
from serried.base.channel import Message
from serried.schema import binds, names
from serried.schema.binds import Bind
from serried.schema.events import JournalEvent
from serried.schema.plan import Container

SPARE = 1.05
"""The disk must have room for so many times the image's size."""
CHUNK = 4 << 20


class ImageCopy:
    """Copies in a process of its own, from the start on: it may take minutes, and the agent must stay responsive."""

    def __init__(self, loop: Loop, attempt: Attempt, folder: Folder, log_event: Callable[..., None]) -> None:
        self._loop = loop
        self._private = folder.path
        self._log_event = log_event
        self._waiting: List[Callable[[], None]] = []
        self._locks: List[int] = []
        self._is_resolved = True
        self._answer: Message = {"problem": "the process that copies the image was killed"}
        container = attempt.plan.container
        if not container or not container.local:
            return
        if folder.room is None or not folder.has_disk:
            log_event(JournalEvent.IMAGE, problem="this node has no disk of its own")
            return
        self._is_resolved = False
        HelperProcess(loop, "copy-image", (container.image, str(folder.room)), self._on_message)

    def when_ready(self, action: Callable[[], None]) -> None:
        """Call `action` once the image is copied, or cannot be."""
        if self._is_resolved:
            action()
        else:
            self._waiting.append(action)

    def _on_message(self, message: Optional[Message]) -> None:
        """The one answer of the process, and then its end."""
        if message is not None:
            self._answer = message
            return
        self._log_event(JournalEvent.IMAGE, **self._answer)
        copies = [Path(self._answer["path"])] if "path" in self._answer else []
        shared_cache.hold(self._loop.after, copies, lambda held: self._resolve(copies, held))

    def _resolve(self, copies: List[Path], held: List[int]) -> None:
        self._locks = held
        if held and copies[0].exists():
            (self._private / COPY).symlink_to(copies[0])
        self._is_resolved = True
        for action in self._waiting:
            action()

    def release(self) -> None:
        """Delete the copy, unless another job uses it."""
        copy = self._private / COPY
        if self._locks and copy.is_symlink():
            os.close(self._locks.pop())
            path = Path(os.readlink(copy))  # noqa: PTH115
            if locks.remove_unused(path, shared_cache.remove_image):
                remove_empty(path.parent)


def main(arguments: List[str]) -> int:
    """`copy-image IMAGE ROOM`: answers with the fields of JournalEvent.IMAGE."""
    agent = AgentConnection()
    image, room = map(Path, arguments)
    began_at = time.monotonic()
    answer = copy_image(image, room)
    agent.send(**answer, seconds=round(time.monotonic() - began_at, 1))
    return 0


def copy_image(image: Path, room: Path) -> Dict[str, Any]:
    """The `path` of the copy and the `bytes` that were copied, or the `problem`."""
    try:
        return _copy(image, room)
    except shared_cache.NoRoomError as error:
        return {"problem": str(error)}
    except shared_cache.SilentError:
        return {"problem": "another job that copies the image to this node shows no sign of life"}
    except OSError as error:
        return {"problem": f"{error.strerror or error}: {error.filename or image}"}


def _copy(image: Path, room: Path) -> Dict[str, Any]:
    import hashlib

    folder = files.make_ours_alone(files.make_ours_alone(room) / IMAGES)
    state = image.stat()
    identity = f"{image}\0{state.st_size}\0{state.st_mtime_ns}".encode("utf-8", "surrogateescape")
    path = folder / (hashlib.sha256(identity).hexdigest()[:16] + image.suffix)
    shared_cache.tidy_images(folder, keep=path)
    lock = shared_cache.lock(path)
    part = locks.part_of(path)
    try:
        if path.exists():
            return {"path": str(path), "bytes": 0}
        shared_cache.check_room(folder, int(state.st_size * SPARE), 1)
        with image.open("rb", 0) as source, part.open("wb") as target:
            while chunk := source.read(CHUNK):
                target.write(chunk)
                locks.live(path)
        if image.stat().st_mtime_ns != state.st_mtime_ns:
            return {"problem": f"{image} was changed while it was copied"}
        part.replace(path)
        return {"path": str(path), "bytes": state.st_size}
    finally:
        part.unlink(missing_ok=True)
        os.close(lock)


Words = List[str]

OF_THE_HOST = (
    "PATH", "LD_*", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "VIRTUAL_ENV*", "CONDA_*", "_CE_*", "PYENV_*",
    "MODULE*", "LMOD_*", "_LMFILES_*", "LOADEDMODULES*", "__LMOD_*", "_ModuleTable*", "BASH_*", "ENV", "PROMPT_COMMAND",
    "PS1", "SHELL", "OLDPWD", "PWD", "SHLVL", "_",
)  # fmt: skip
"""Variables that name the host's programs and libraries. They do not hold inside, unless the experiment sets them."""

OF_THE_JOB = (
    "SERRIED_*", "SLURM_TMPDIR", "CUDA_*", "NVIDIA_*", "ROCR_*", "HIP_*", "GPU_DEVICE_ORDINAL", "ZE_*", "NCCL_*",
    "RCCL_*", "GLOO_*", "UCX_*", "FI_*", "OMPI_*", "PMI*", "MPI*", "HYDRA_*", "I_MPI_*", "HOROVOD_*", "OMP_*", "MKL_*",
    "OPENBLAS_*", "TORCH*", "PYTORCH_*", "ACCELERATE_*", "DS_*", "LANG", "LC_*", "TZ", "TERM", "USER",
    "LOGNAME", "HOME",
)  # fmt: skip
"""Variables that a contained rank inherits, besides the scheduler's and those that the experiment names."""

INSIDE = "SERRIED_TOLD_"
"""Prefixes a variable on its way in, because the runtime or the image could change its value."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHARLIECLOUD = "ch-run"
COPY = "image"
"""In the node's private folder: a link to the copy of the image, if this node has one."""
IMAGE_ROOT = "/.image"
"""The mount point of the image in its view."""
CHARLIECLOUD_FILES = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf")
"""Charliecloud itself mounts these files of the host, if the image has them."""


class RankContainer:
    """`private` is the attempt's folder on this node."""

    def __init__(self, attempt: Attempt, plan: Container, private: Path) -> None:
        self._attempt = attempt
        self._plan = plan
        self._private = private
        copy = private / COPY
        self._image = os.readlink(copy) if copy.is_symlink() else plan.image  # noqa: PTH115
        self._set_here = [
            *attempt.plan.environment.env,
            *attempt.plan.environment.secrets,
            *attempt.plan.environment.env_file,
        ]
        """Variables of the experiment, which override those of the image."""

    def inherited(self, environment: Mapping[str, str]) -> Dict[str, str]:
        """The variables of the agent's environment that hold inside."""
        inherit = self._attempt.plan.environment.inherit
        of_scheduler = [f"{prefix.rstrip('_')}*" for prefix in self._attempt.plan.site.dialect.prefixes]
        named = (*OF_THE_JOB, *of_scheduler, *([] if isinstance(inherit, str) else inherit))

        def holds(name: str) -> bool:
            is_inherited = not _matches(name, OF_THE_HOST) and (not self._plan.contained or _matches(name, named))
            return name in self._set_here or is_inherited

        return {name: value for name, value in environment.items() if holds(name)}

    def enter(self, words: Sequence[str], environment: Mapping[str, str]) -> Tuple[Words, Dict[str, str]]:
        """The argv and the environment that run `words` inside with `environment`."""
        values = {name: environment[name] for name in ("HOME", *self._set_here) if name in environment}
        values["PYTHONNOUSERSITE"] = environment.get("PYTHONNOUSERSITE", "1")  # ~/.local is for the host's Python
        values["TMPDIR"] = "/tmp" if self._plan.contained else environment.get("TMPDIR", "/tmp")  # noqa: S108
        path = environment.get("PYTHONPATH", "")
        is_charliecloud = self._plan.runtime.endswith(CHARLIECLOUD)
        if is_charliecloud:
            of_runtime = {"PATH": SYSTEM_PATH, "USER": os.environ.get("USER") or str(os.getuid())}
        else:
            kept = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "XDG_RUNTIME_DIR", "HOME")
            prefixes = ("APPTAINER", "SINGULARITY")
            of_runtime = {name: os.environ[name] for name in os.environ if name in kept or name.startswith(prefixes)}
        process = {**{name: value for name, value in environment.items() if name != "PYTHONPATH"}, **of_runtime}
        process.update({INSIDE + name: value for name, value in {**values, "PYTHONPATH": path}.items()})
        before = self._charliecloud() if is_charliecloud else self._apptainer()
        return [*before, "/bin/sh", "-c", _set_and_execute(list(values)), "sh", *words], process

    def _apptainer(self) -> Words:
        """Names every mount, because Apptainer's own differ between sites.

        Not `--contain`: it gives each rank a /dev/shm of its own and hides InfiniBand, but NCCL needs both.
        """
        argv = [_find(self._plan.runtime), "--quiet", "exec", "--no-home"]
        if self._attempt.plan.allocation.gpus:
            is_amd = os.path.exists("/dev/kfd") and not os.path.exists("/dev/nvidiactl")  # noqa: PTH110
            argv.append("--rocm" if is_amd else "--nv")
        argv += ["--writable-tmpfs"] if self._plan.writable else []
        for bind in self.binds():
            argv += binds.for_apptainer(bind)
        return [*argv, *self._plan.options, "--pwd", str(self._attempt.workdir), self._image]

    def _charliecloud(self) -> Words:
        """Charliecloud creates no mount points in a read-only image, so the image is seen through a view."""
        own = self.binds()
        image, more = _view_of(Path(self._image), self._private / "view", own)
        mounts = [f"--bind={bind.source}:{bind.destination}" for bind in (*more, *own)]
        return [_find(self._plan.runtime), *mounts, *self._plan.options, f"--cd={self._attempt.workdir}", image, "--"]

    def binds(self) -> List[Bind]:
        """The folders of the host. With `contained`, a home and a /tmp of the attempt's own, with mount points."""
        home, temporary = os.environ.get("HOME", ""), os.environ.get("TMPDIR", "")
        if not self._plan.contained:
            wanted = [home, "/tmp", temporary, *self._needed()]  # noqa: S108 - the host's, as outside
            return covering([path for path in wanted if path and os.path.isdir(path)], self._users())  # noqa: PTH112
        folders = [("/tmp", "tmp"), ("/var/tmp", "var-tmp"), *([(home, "home")] if home else [])]  # noqa: S108
        own = [Bind(str(self._private / name), place) for place, name in folders]
        for bind in own:
            os.makedirs(bind.source, mode=0o700, exist_ok=True)  # noqa: PTH103
        return [*own, *_bind_below(own, covering(self._needed(), self._users()))]

    def _users(self) -> List[Bind]:
        """The binds of the experiment. Creates folders below the node's scratch, which cannot exist yet."""
        local = os.environ.get("SLURM_TMPDIR") or str(self._private / SCRATCH)
        users = [binds.on_node(binds.parse(text), local) for text in self._plan.binds]
        for bind in users:
            if _is_below(bind.source, local) and not os.path.exists(bind.source):  # noqa: PTH110
                os.makedirs(bind.source, mode=0o700, exist_ok=True)  # noqa: PTH103
        return users

    def _needed(self) -> List[str]:
        """Folders that Serried's own variables and placeholders name."""
        attempt = self._attempt
        project = Path(attempt.plan.source.directory)
        linked = [os.path.realpath(project / name) for name in attempt.plan.source.links]
        resume = os.environ.get(names.RESUME) or attempt.resume_from or ""
        disk = os.path.expandvars(attempt.plan.site.local_disk or "")
        wanted = [
            str(attempt.run.path),
            _folder_of(attempt.run.library),
            os.path.dirname(os.path.realpath(attempt.run.library)),  # noqa: PTH120
            str(project),
            str(self._private),
            *linked,
            disk,
            str(self._private.parents[1] / DATA),
            *(item.source for item in attempt.plan.staged_items),  # a node without a disk reads them there
            *(attempt.plan.data.require if attempt.plan.data else ()),
            *attempt.dependencies,
            os.path.dirname(resume),  # noqa: PTH120
        ]
        return [path for path in wanted if path.startswith("/") and os.path.exists(path)]  # noqa: PTH110


def of(attempt: Attempt, private: Path) -> Optional[RankContainer]:
    """None if ranks run without a container, or if the agent itself runs inside."""
    container = attempt.plan.container
    return RankContainer(attempt, container, private) if container and container.runtime != "pyxis" else None


def _find(program: str) -> str:
    """The program's path, or `program` if no folder of PATH has it. (`shutil` takes milliseconds to import.)"""
    if "/" in program:
        return program
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = f"{folder or '.'}/{program}"
        if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113
            return path
    return program


def _set_and_execute(variables: Sequence[str]) -> str:
    """The shell script that sets `variables` inside, whatever the image sets, and executes the program.

    The image's own PYTHONPATH follows ours. A Charliecloud image has its variables in a file.
    """
    lines = [
        'if [ -r /ch/environment ]; then while IFS= read -r it || [ -n "$it" ]; do',
        "case ${it%%=*} in ''|[0-9]*|*[!A-Za-z0-9_]*) ;; *) export \"$it\" ;; esac; done </ch/environment; fi",
        f'export PYTHONPATH="${INSIDE}PYTHONPATH${{PYTHONPATH:+:$PYTHONPATH}}"',
        *(f'export {name}="${INSIDE}{name}"' for name in variables),
        f"unset {' '.join(INSIDE + name for name in (*variables, 'PYTHONPATH'))}",
        'exec "$@"',
    ]
    return "\n".join(lines)


def _folder_of(path: Path) -> str:
    """The folder of a link's target as the link spells it: each folder on the way must exist inside by that name."""
    target = os.readlink(path) if path.is_symlink() else ""  # noqa: PTH115
    return os.path.dirname(os.path.normpath(path.parent / target)) if target else str(path.parent)  # noqa: PTH120


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def covering(paths: Iterable[str], users: Sequence[Bind]) -> List[Bind]:
    """Binds that make `paths` the same inside and outside, and the user's, which may lie below them.

    A path below another one needs no bind. A path through a link needs two: its own, and that of the real folder.
    """
    ours: Dict[str, None] = {}
    wanted = [place for path in paths for place in (os.path.normpath(path), os.path.realpath(path))]
    taken = {bind.destination for bind in users}
    for place in sorted(dict.fromkeys(wanted), key=lambda path: path.count("/")):
        if place != "/" and place not in taken and not any(_is_below(place, other) for other in ours):
            ours[place] = None
    return sorted([*(Bind(place, place) for place in ours), *users], key=lambda bind: bind.destination.count("/"))


def _bind_below(outer: Sequence[Bind], inner: Sequence[Bind]) -> List[Bind]:
    """`inner` without the destinations of `outer`. Creates their mount points in the folders of `outer`."""
    kept = [bind for bind in inner if not any(bind.destination == other.destination for other in outer)]
    for bind in kept:
        for other in outer:
            if _is_below(bind.destination, other.destination):
                _make_point(other.source + bind.destination[len(other.destination) :], bind.source)
    return kept


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _make_point(path: str, source: str) -> None:
    if os.path.isdir(source):  # noqa: PTH112
        os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103
    elif not os.path.exists(path):  # noqa: PTH110
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(path, os.O_CREAT, 0o600))


def _view_of(image: Path, view: Path, mounts: Sequence[Bind]) -> Tuple[str, List[Bind]]:
    """A folder with all mount points in place of `image`, if it lacks some, and binds that mount its entries there."""
    missing = [bind for bind in mounts if not (image / bind.destination.lstrip("/")).exists()]
    if not image.is_dir() or not missing:
        return str(image), []
    if not view.exists():
        aside = view.with_name(f"{view.name}-{os.getpid()}")
        _make_point(f"{aside}{IMAGE_ROOT}", str(image))
        _link_entries(image, aside, "", [*(bind.destination for bind in mounts), *CHARLIECLOUD_FILES])
        for bind in (*missing, *(Bind(path, path) for path in CHARLIECLOUD_FILES)):
            _make_point(f"{aside}{bind.destination}", bind.source)
        with contextlib.suppress(OSError):  # another rank of this node was faster
            aside.rename(view)
    folders = [entry for entry in os.scandir(image) if entry.is_dir(follow_symlinks=False)]
    # Folders that are empty in the view are mounted as a whole.
    mounted = [entry for entry in folders if _has_entries(entry.path) and not _has_entries(str(view / entry.name))]
    return str(view), [Bind(str(image), IMAGE_ROOT), *(Bind(entry.path, f"/{entry.name}") for entry in mounted)]


def _link_entries(image: Path, view: Path, folder: str, points: Sequence[str]) -> None:
    """Link the entries of `folder` in the view to those of the image, and descend only towards a mount point."""
    (view / folder).mkdir(mode=0o755, parents=True, exist_ok=True)
    for entry in os.scandir(image / folder):
        inner = f"{folder}/{entry.name}" if folder else entry.name
        place = view / inner
        if entry.is_symlink():
            place.symlink_to(os.readlink(entry.path))  # noqa: PTH115 - not resolved
        elif f"/{inner}" in points:
            _make_point(str(place), entry.path)
        elif entry.is_dir() and any(_is_below(point, f"/{inner}") for point in points):
            _link_entries(image, view, inner, points)
        elif entry.is_dir() and not folder:
            place.mkdir(mode=0o755)
        else:
            place.symlink_to(f"{IMAGE_ROOT}/{inner}")


def _has_entries(folder: str) -> bool:
    """True also for a folder that this user may not list."""
    try:
        return bool(os.listdir(folder))  # noqa: PTH208 - names will do
    except PermissionError:
        return True
