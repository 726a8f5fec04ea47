"""Serried's copy on the login node: the archive that travels, and the command that starts what is in it.

The command is one line for a login shell of any kind. It finds a Python of version 3.9 or later, which runs `receive`
below: that unpacks the archive, once for each version, and starts `serve`.

A Python of that age has no `tomllib`, and no newer `click` runs there. So the archive has its own copies of both, from
the wheels in `wheels/`.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import hashlib
import inspect
import io
import os
import shutil
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from serried.base import NamedTuple, files

OLDEST_PYTHON = (3, 9)
HOUSE = Path(__file__).parents[1]
WHEELS = Path(__file__).parent / "wheels"
BEFORE_311 = "before311"
"""The folder of the archive that an older Python has on its path."""
PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(13, OLDEST_PYTHON[1] - 1, -1)))
MODULES = ("python", "python3", "Python", "python/3.12", "python/3.11", "python/3.10", "python/3.9", "cray-python")
"""Modules of sites that bring a Python, in the order in which they are tried."""
IMPORTS = "import errno, hashlib, io, os, shutil, sys, time, zipfile\nfrom pathlib import Path\n"
"""What `receive` needs."""
_ALWAYS = (1980, 1, 1, 0, 0, 0)


class FarPart(NamedTuple):
    digest: str
    """SHA-256, in hex."""
    size: int
    """Bytes."""
    content: Callable[[], bytes]
    """A zip."""


def cache_folder(environ: Mapping[str, str]) -> Path:
    given = environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "serried"


def archive(environ: Mapping[str, str]) -> FarPart:
    """The archive of this installation, packed again only if a file has changed, and read only if it must be sent."""
    named = dict(_entries())
    states = [f"{name} {state.st_size} {state.st_mtime_ns}" for name, path in named.items() if (state := path.stat())]
    key = hashlib.sha256("\n".join([str(HOUSE), *states]).encode()).hexdigest()[:16]
    folder = cache_folder(environ)
    with contextlib.suppress(OSError):
        files.check_ours_alone(folder)
        for path in folder.glob(f"far-{key}-*-*.zip"):
            _, _, size, digest = path.stem.split("-")
            return FarPart(digest, int(size), functools.partial(_read, path, digest, named))
    content = _packed(named)
    digest = hashlib.sha256(content).hexdigest()
    with contextlib.suppress(OSError):  # a full home: it is packed each time
        files.make_directory(folder)
        for other in folder.glob("far-*.zip"):
            other.unlink(missing_ok=True)
        files.write_bytes(folder / f"far-{key}-{len(content)}-{digest}.zip", content, durable=False)
    return FarPart(digest, len(content), lambda: content)


def _read(path: Path, digest: str, named: Mapping[str, Path]) -> bytes:
    """The archive in a file of the cache, or packed again if that file is damaged."""
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() == digest:
            return content
        path.unlink()
    return _packed(named)


def _entries() -> Iterator[tuple[str, Path]]:
    for folder, _, names in sorted(os.walk(HOUSE)):
        if not folder.endswith("__pycache__") and folder != str(WHEELS):
            inside = Path(folder).relative_to(HOUSE.parent).as_posix()
            for name in sorted(names):
                yield f"{inside}/{name}", Path(folder, name)
    for path in sorted(WHEELS.glob("*.whl")):
        yield path.name, path


def _packed(named: Mapping[str, Path]) -> bytes:
    contents: dict[str, bytes] = {}
    for name, path in named.items():
        if path.suffix != ".whl":
            contents[name] = path.read_bytes()
            continue
        with zipfile.ZipFile(path) as wheel:
            for member in wheel.namelist():
                contents[member.replace("tomli/", f"{BEFORE_311}/tomllib/")] = wheel.read(member)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in contents.items():
            packed.writestr(zipfile.ZipInfo(name, _ALWAYS), content, zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


def marker(nonce: str, stage: str) -> bytes:
    """A line of the far end's stdout. Stages: `1` from the shell, then `have`, `need`, `lost`, `error` or `python`."""
    return f"serried-{nonce}-{stage} ".encode()


def command(archive: FarPart, nonce: str, *, must_have: bool = False) -> str:
    """The line for the login shell. With `must_have`, the archive will not follow.

    Within its quotes are no single quote, backslash, exclamation mark or newline: each means something to some shell.
    A word of 4,096 bytes is too long for an old tcsh.
    """
    functions = "\n\n".join(inspect.getsource(function) for function in (is_whole, unpack, receive))
    source = f"{IMPORTS}\n{functions}\nreceive({archive.digest!r}, {0 if must_have else archive.size}, {nonce!r})\n"
    packed = base64.b64encode(zlib.compress(source.encode(), 9)).decode()
    program = "import base64,sys,zlib;exec(zlib.decompress(base64.b64decode(sys.argv[1])))"
    script = (
        f'n={nonce}; echo "serried-$n-1 "; d="${{XDG_CACHE_HOME:-$HOME/.cache}}/serried"; '
        f't() {{ "$1" -I -S -c "import sys;sys.exit(sys.version_info<{OLDEST_PYTHON})" </dev/null >/dev/null 2>&1; }}; '
        f'go() {{ [ -n "$1" ] && t "$1" && exec "$1" -I -S -c "{program}" {packed}; }}; '
        '[ -O "$d" ] && { read -r p <"$d/python"; } 2>/dev/null; go "$p"; '
        f'for p in {" ".join(PYTHONS)}; do go "$p"; done; '
        f"for m in {' '.join(MODULES)}; do "
        'set -- $(bash -lc "module load $m; echo; command -v python3; printenv LD_LIBRARY_PATH" '
        "</dev/null 2>/dev/null | tail -n 2); "
        '[ -n "$2" ] && export LD_LIBRARY_PATH="$2"; go "$1"; done; '
        'echo "serried-$n-python $(python3 -V 2>&1)"; exit 3'
    )
    return f"sh -c '{script}'"


def is_whole(folder: Path) -> bool:
    """The far part is there, and no file of it was deleted by age."""
    try:
        for line in (folder / "files").read_text().splitlines():
            count, _, name = line.partition(" ")
            if (folder / name).stat().st_size != int(count):
                return False
        os.utime(folder)
    except (OSError, ValueError):
        return False
    return True


def unpack(content: bytes, folder: Path) -> None:
    """In one step, beside other connections that do the same. Versions that were not used for 30 days go."""
    aside = folder.with_name(f".{folder.name[:16]}.{os.getpid()}.{time.time_ns()}")
    try:
        for other in folder.parent.iterdir():
            if other.name[:1] != "." and time.time() - other.stat().st_mtime > 30 * 86400:
                shutil.rmtree(other, ignore_errors=True)
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            packed.extractall(aside)
            lines = [f"{entry.file_size} {entry.filename}\n" for entry in packed.infolist()]
        (aside / "files").write_text("".join(lines))
        if is_whole(folder):  # another connection was faster
            return
        if folder.exists():  # damaged
            folder.rename(f"{aside}.old")
        aside.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another connection was faster
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(f"{aside}.old", ignore_errors=True)


def receive(digest: str, size: int, nonce: str) -> None:
    """Runs over there, from its source and the source of the two functions above, without other names of this module.

    `size` is 0 if the archive will not follow.
    """

    def say(stage: str, text: str = "") -> None:
        os.write(1, f"serried-{nonce}-{stage} {text}\n".encode())

    os.umask(0o077)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "serried")
    far = base / "far"
    try:
        far.mkdir(0o700, parents=True, exist_ok=True)
        owners = {each.st_uid for each in (base.lstat(), base.stat(), far.lstat())}
        if owners != {os.getuid()} or (base.stat().st_mode | far.lstat().st_mode) & 0o022:
            raise PermissionError(errno.EPERM, "others can write", str(base))
        if not is_whole(far / digest):
            say("need" if size else "lost")
            if not size:
                return
            content = b""
            while len(content) < size and (part := os.read(0, size - len(content))):
                content += part
            if hashlib.sha256(content).hexdigest() != digest:
                raise OSError(errno.EBADMSG, "damaged", str(far))  # noqa: TRY301 - reported below
            unpack(content, far / digest)
            (base / f"python.{nonce}").write_text(f"{sys.executable}\n")
            (base / f"python.{nonce}").rename(base / "python")
    except OSError as error:
        say("error", f"{errno.errorcode.get(error.errno or 0, 'EIO')} {error.filename or far}")
        return
    entries = [far / digest, *([far / digest / "before311"] if sys.version_info < (3, 11) else [])]
    sys.path[:0] = map(str, entries)
    say("have", "{}.{}.{}".format(*sys.version_info))
    from serried.remote import serve

    serve.main(base)
