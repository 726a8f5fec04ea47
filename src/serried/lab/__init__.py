"""A throwaway Slurm, real daemons and all, in one directory of this machine.

lab = serried.lab.up(nodes=2, gpus=4)
lab.run("srun", "-N2", "hostname")
lab.down()
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serried.errors import SerriedError, UsageError
from serried.lab import daemons, ports, processes
from serried.lab.config import MAX_NODES, Spec, files
from serried.lab.lab import Lab, Status

__all__ = ["Lab", "Status", "down_all", "find", "labs", "root", "sweep_abandoned", "up"]

DEFAULT_NAME = "lab"


def root() -> Path:
    """Where this user's labs live: a short path, because a Unix socket's has at most 107 bytes."""
    return Path(os.environ.get("SERRIED_LAB_ROOT") or f"/tmp/serried-lab-{os.getuid()}")  # noqa: S108 - its owner is checked


def up(
    name: str = DEFAULT_NAME,
    *,
    nodes: int = 4,
    gpus: int = 4,
    gpu_type: str = "",
    accounting: bool = False,
    settings: Mapping[str, str] | None = None,
    partitions: Sequence[str] = (),
    temporary: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Lab:
    """Start a lab and return it when its nodes are idle.

    `settings` are more lines of slurm.conf, or other values for the lab's own. A `temporary` lab is
    removed by the next `up`, `down --all` or `status` of this user when the process that made it has gone.

    Raises:
        MissingProgramError: Slurm is not installed.
        UsageError: a lab of this name is up, or the request makes no sense.
    """
    _check(name, nodes, gpus)
    daemons.require(accounting=accounting)
    sweep_abandoned()
    folder = root()
    with ports.claimed(nodes + 2) as port:
        spec = Spec(
            name=name,
            directory=folder / name,
            user=getpass.getuser() if os.getuid() else "root",
            hostname=socket.gethostname().partition(".")[0],
            port=port,
            slurm_version=daemons.slurm_version(),
            nodes=nodes,
            gpus=gpus,
            gpu_type=gpu_type,
            accounting=accounting,
            settings=dict(settings or {}),
            partitions=tuple(partitions),
        )
        lab = _furnish(spec, temporary=temporary)
        try:
            lab.start(progress)
        except BaseException:
            lab.down()
            raise
    return lab


def labs() -> list[Lab]:
    """All labs of this user, dead ones included, by name."""
    folder = root()
    if not folder.is_dir():
        return []
    found = (Lab.load(entry) for entry in sorted(folder.iterdir()))
    return [lab for lab in found if lab is not None]


def find(name: str | None = None) -> Lab:
    """The lab of this name; without a name, the only one, or the one called `lab`.

    Raises UsageError when there is none, or the choice is not clear.
    """
    known = {lab.name: lab for lab in labs()}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    wanted = name or DEFAULT_NAME
    if wanted in known:
        return known[wanted]
    if not known:
        raise UsageError("no lab is up", hint="start one: serried lab up")
    listed = ", ".join(f"`{each}`" for each in known)
    raise UsageError(f"there is no lab `{wanted}`", hint=f"these are up: {listed}")


def down_all() -> list[str]:
    """Take down every lab of this user, also half-made ones; return their names."""
    names = []
    for lab in labs():
        lab.down()
        names.append(lab.name)
    folder = root()
    if folder.is_dir():
        for rest in folder.iterdir():
            shutil.rmtree(rest, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
    return names


def sweep_abandoned() -> None:
    """Take down temporary labs whose makers were killed."""
    for lab in labs():
        if lab.is_abandoned:
            lab.down()


def _check(name: str, nodes: int, gpus: int) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
        raise UsageError(f"`{name}` cannot be a lab's name", hint="at most 31 lower-case letters, digits and hyphens")
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"a lab has 1 to {MAX_NODES} nodes, not {nodes}")
    if not 0 <= gpus <= 64:
        raise UsageError(f"a lab's node has 0 to 64 GPUs, not {gpus}")


def _make_root() -> None:
    folder = root()
    # Root's jobs may run as anybody, who then has to reach the socket of munged.
    mode = 0o700 if os.getuid() else 0o755
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SerriedError(
            f"`{folder}` is not a directory that only you can write to", hint="remove it, or set SERRIED_LAB_ROOT"
        )


def _furnish(spec: Spec, *, temporary: bool) -> Lab:
    """Make the lab's directory with all its files, aside, and put it in place at once: its name is the claim."""
    aside = _make_aside(spec)
    try:
        for folder in ("log", "run", "state", "spool", "devices"):
            (aside / folder).mkdir(mode=0o755)
        spec = _with_devices(spec, aside / "devices")
        for name, text in files(spec).items():
            path = aside / name
            path.touch(0o600 if name == "slurmdbd.conf" else 0o644)
            path.write_text(text, encoding="utf-8")
        key = aside / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        lab = Lab(spec, {}, owner=processes.identify(os.getpid()), temporary=temporary)
        lab.save(aside)
        _put_in_place(aside, spec)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return lab


def _make_aside(spec: Spec) -> Path:
    aside = spec.directory.with_name(f".{spec.name}.{secrets.token_hex(4)}")
    while True:
        _make_root()
        # Whoever takes the last lab down removes the root: perhaps just now.
        with contextlib.suppress(FileNotFoundError):
            aside.mkdir(mode=0o755)
            return aside


def _put_in_place(aside: Path, spec: Spec) -> None:
    existing = Lab.load(spec.directory)
    if existing is not None and not existing.is_alive:
        existing.down()
    try:
        aside.rename(spec.directory)
    except OSError as error:
        raise UsageError(
            f"lab `{spec.name}` is already up",
            hint=f"another name: serried lab up --name NAME; or end it: serried lab down {spec.name}",
        ) from error


def _with_devices(spec: Spec, folder: Path) -> Spec:
    if not spec.gpus:
        return spec
    try:
        for number in range(spec.gpus):
            # The numbers of /dev/null: whoever opens it does no harm.
            os.mknod(folder / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        devices = _existing_devices(spec.gpus)
    else:
        devices = tuple(str(spec.directory / f"devices/gpu{number}") for number in range(spec.gpus))
    return replace(spec, gpu_devices=devices)


def _existing_devices(count: int) -> tuple[str, ...]:
    """Character devices that are there anyway: an ordinary user cannot make any."""
    candidates = [f"/dev/tty{number}" for number in range(10, 64)]
    candidates += [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx")]
    devices = [device for device in candidates if _is_character_device(device)]
    if len(devices) < count:
        raise UsageError(
            f"this machine has character devices for {len(devices)} pretended GPUs, not {count}",
            hint="ask for fewer with --gpus, or start the lab as root",
        )
    return tuple(devices[:count])


def _is_character_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)  # noqa: PTH116 - Path.stat is no shorter
    except OSError:
        return False
