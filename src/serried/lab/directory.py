"""The directory and the ports of a lab, before its first daemon starts."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from serried.base import files, processes
from serried.base.errors import SerriedError, UsageError
from serried.lab import config
from serried.lab.config import NO_FILES, TASK_PROLOG, Spec
from serried.lab.lab import Lab

MODES = {"slurmdbd.conf": 0o600, TASK_PROLOG: 0o755}
"""Modes of files, other than 0644."""

PORTS_OF_A_LAB = 64
_FIRST_PORT, _LAST_PORT = 21_000, 32_700
"""Below the ports that Linux gives to outgoing connections (32768 and up)."""


def root() -> Path:
    """The folder of this user's labs. Its path is short, because the path of a Unix socket has at most 107 bytes."""
    return Path(os.environ.get("SERRIED_LAB_ROOT") or f"/tmp/serried-lab-{os.getuid()}")  # noqa: S108 - owner checked


def labs() -> list[Lab]:
    """All labs of this user by name, also those whose daemons have ended."""
    loaded = (Lab.load(entry) for entry in _entries() if not entry.name.startswith("."))
    return [lab for lab in loaded if lab is not None]


def clear() -> None:
    """Delete the files of unfinished labs, and the root."""
    for rest in _entries():
        shutil.rmtree(rest, ignore_errors=True)
    with contextlib.suppress(OSError):
        root().rmdir()


def _entries() -> list[Path]:
    """The entries of the root. Another process may delete the root at any moment, with the last lab."""
    if not root().is_dir():
        return []
    try:
        with _refusing_others():
            files.check_ours_alone(root())
            return sorted(root().iterdir())
    except FileNotFoundError:
        return []


def check_length(directory: Path) -> None:
    """Raise UsageError if a socket's path would be too long. The longest is spool/n60/n60_4294967295.4294967295."""
    most = 107 - len("/spool/n60/n60_4294967295.4294967295")
    if len(os.fsencode(directory)) > most:
        raise UsageError(
            f"`{directory}` is too long for the sockets of a lab",
            hint=f"set SERRIED_LAB_ROOT so that it has at most {most} bytes",
        )


def _make_root() -> None:
    folder = root()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _refusing_others():
        files.make_ours_alone(folder).chmod(files.PRIVATE_DIRECTORY)


@contextlib.contextmanager
def _refusing_others() -> Iterator[None]:
    """In /tmp another user may have created a folder or a link of this name."""
    try:
        yield
    except PermissionError as error:
        raise SerriedError(
            f"`{error.filename}` is not a directory that only you can write to",
            hint="remove it, or set SERRIED_LAB_ROOT",
        ) from error


def create(spec: Spec, *, temporary: bool) -> Lab:
    """Write the lab's directory elsewhere, and rename it into place. The name is the claim, so only one lab gets it."""
    aside = _make_aside(spec)
    try:
        for folder in ("log", "run", "state", "spool", "devices", "database", NO_FILES):
            (aside / folder).mkdir(mode=files.PRIVATE_DIRECTORY)
        spec = _with_devices(spec, aside / "devices")
        for name, text in config.files(spec).items():
            path = aside / name
            path.write_text(text, encoding="utf-8")
            path.chmod(MODES.get(name, 0o644))
        key = aside / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        lab = Lab(spec, {}, owner=processes.myself(), temporary=temporary)
        lab.save(aside)
        _put_in_place(aside, spec)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return lab


def _make_aside(spec: Spec) -> Path:
    aside = spec.directory.with_name(f".{spec.name}.{secrets.token_hex(4)}")
    while True:
        # Another process may delete the root here, with the last lab.
        with contextlib.suppress(FileNotFoundError):
            _make_root()
            aside.mkdir(mode=files.PRIVATE_DIRECTORY)
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
            # The numbers of /dev/null: opening it does no harm.
            os.mknod(folder / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        devices = _existing_devices(spec.gpus)
    else:
        devices = tuple(str(spec.directory / f"devices/gpu{number}") for number in range(spec.gpus))
    return replace(spec, gpu_devices=devices)


def _existing_devices(count: int) -> tuple[str, ...]:
    """Character devices of this machine: an ordinary user cannot create any."""
    candidates = [f"/dev/tty{number}" for number in range(10, 64)]
    candidates += [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx")]
    devices = [device for device in candidates if _is_character_device(device)]
    if len(devices) < count:
        raise UsageError(
            f"this machine has character devices for {len(devices)} simulated GPUs, not {count}",
            hint="request fewer with --gpus, or start the lab as root",
        )
    return tuple(devices[:count])


def _is_character_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)  # noqa: PTH116 - Path.stat is no shorter
    except OSError:
        return False


@contextlib.contextmanager
def claim_ports(count: int) -> Iterator[int]:
    """The first of `count` free ports, claimed while the body runs. At its end the daemons must listen on them.

    A starting lab listens on the first port of a block, so two labs never choose the same block. A running lab is
    recognised by the ports of its controller and its nodes.
    """
    for block in range(_FIRST_PORT, _LAST_PORT - PORTS_OF_A_LAB, PORTS_OF_A_LAB):
        with socket.socket() as claim:
            if _can_listen(claim, block) and all(_is_free(port) for port in range(block + 1, block + 1 + count)):
                yield block + 1
                return
    raise SerriedError(
        f"no {count} consecutive ports are free between {_FIRST_PORT} and {_LAST_PORT}",
        hint="end labs that you no longer need: serried lab status; serried lab down --all",
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As in Slurm: a port that only lingers in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _can_listen(probe, port)


def _can_listen(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("", port))
        probe.listen(1)
    except OSError:
        return False
    return True
