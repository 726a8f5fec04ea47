"""A lab's directory: where it lies, and how it is furnished before its first daemon starts."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from dataclasses import replace
from pathlib import Path

from serried import processes
from serried.errors import SerriedError, UsageError
from serried.lab.config import TASK_PROLOG, Spec, files
from serried.lab.lab import Lab

MODES = {"slurmdbd.conf": 0o600, TASK_PROLOG: 0o755}
"""Of files that are not just read, by everybody."""


def root() -> Path:
    """Where this user's labs live: a short path, because a Unix socket's has at most 107 bytes."""
    return Path(os.environ.get("SERRIED_LAB_ROOT") or f"/tmp/serried-lab-{os.getuid()}")  # noqa: S108 - owner checked


def labs() -> list[Lab]:
    """All labs of this user, dead ones included, by name."""
    found = (Lab.load(entry) for entry in _entries() if not entry.name.startswith("."))
    return [lab for lab in found if lab is not None]


def clear() -> None:
    """Remove what half-made labs have left, and the root."""
    for rest in _entries():
        shutil.rmtree(rest, ignore_errors=True)
    with contextlib.suppress(OSError):
        root().rmdir()


def _entries() -> list[Path]:
    """What is in the root, if that is there: whoever takes the last lab down removes it, perhaps just now."""
    if not root().is_dir():
        return []
    try:
        _check_owner(root())
        return sorted(root().iterdir())
    except FileNotFoundError:
        return []


def check_length(directory: Path) -> None:
    """A Unix socket's path has at most 107 bytes; the longest here is spool/n60/n60_4294967295.4294967295."""
    most = 107 - len("/spool/n60/n60_4294967295.4294967295")
    if len(os.fsencode(directory)) > most:
        raise UsageError(
            f"`{directory}` is too long for the sockets of a lab",
            hint=f"set SERRIED_LAB_ROOT so that it has at most {most} bytes",
        )


def _make_root() -> None:
    folder = root()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Root's jobs may run as anybody, who then has to reach the socket of munged.
        _make(folder, 0o700 if os.getuid() else 0o755)
    _check_owner(folder)


def _check_owner(folder: Path) -> None:
    """In /tmp, somebody else may have put a folder, or a link, in our place."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SerriedError(
            f"`{folder}` is not a directory that only you can write to", hint="remove it, or set SERRIED_LAB_ROOT"
        )


def _make(folder: Path, mode: int) -> None:
    """With exactly this mode, whatever the umask: jobs of others pass through."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(mode)


def furnish(spec: Spec, *, temporary: bool) -> Lab:
    """Make the lab's directory with all its files, aside, and put it in place at once: its name is the claim."""
    aside = _make_aside(spec)
    try:
        for folder in ("log", "run", "state", "spool", "devices"):
            _make(aside / folder, 0o755)
        spec = _with_devices(spec, aside / "devices")
        for name, text in files(spec).items():
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
        # Whoever takes the last lab down removes the root: perhaps just now.
        with contextlib.suppress(FileNotFoundError):
            _make_root()
            _make(aside, 0o755)
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
