"""Make a virtual environment with an older torch: `python old_torch.py 3.9 2.1.2 DIRECTORY [PACKAGE …]`.

The package index has builds for CUDA alone, which want two gigabytes of libraries that a machine without a GPU never
calls but the loader asks for. Stand-ins take their place: each has the names that torch refers to, and does nothing.
CUDA's own runtime is small and real: torch asks it whether there is a GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

RUNTIME = re.compile(r"nvidia[-_]cuda[-_]runtime")
NEEDS = re.compile(r"\(NEEDED\).*\[(.+)\]")
CUDA = re.compile(r"lib(cu\w+|nccl|nv\w+)\.so\.[\d.]+")
STANDS_IN = "libcuda.so.1", "libcudart"
"""The driver's is asked for at run time alone, and the runtime is real."""


def make(python: str, version: str, directory: Path, packages: Iterable[str]) -> None:
    run(interpreter(python), "-m", "venv", "--clear", directory)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    run(*pip, "--no-deps", f"torch=={version}")
    (site,) = directory.glob("lib/python3*/site-packages")
    wanted = list(requirements(site / f"torch-{version}.dist-info" / "METADATA"))
    run(*pip, "--no-deps", *[each for each in wanted if RUNTIME.match(each)])
    # No word of what torch misses: that is what the stand-ins are for.
    run(*pip, "--no-warn-conflicts", *[each for each in wanted if not re.match(r"nvidia|triton", each)], *packages)
    stand_in(site / "torch" / "lib", directory / "stand-in")


def interpreter(version: str) -> str:
    """A Python of `version`, `3.9` say: on PATH, or one of pyenv's."""
    kept = Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")
    asks = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    for found in filter(None, [shutil.which(f"python{version}"), *map(str, sorted(kept))]):
        said = subprocess.run([found, "-c", asks], check=False, capture_output=True, text=True).stdout
        if said.strip() == version:
            return found
    sys.exit(f"error: no Python {version}: not as python{version} on PATH, not in ~/.pyenv/versions")


def requirements(metadata: Path) -> Iterable[str]:
    """What a package requires where no extra is asked for, without the conditions."""
    for line in metadata.read_text(encoding="utf-8").splitlines():
        if line.startswith("Requires-Dist:") and "extra ==" not in line:
            yield re.sub(r"[()\s]", "", line.partition(":")[2].partition(";")[0])


def stand_in(libraries: Path, work: Path) -> None:
    """Put a library of empty functions beside torch's own for each of CUDA's that they need."""
    own = [path for path in libraries.iterdir() if ".so" in path.name]
    needed = {match for path in own for match in NEEDS.findall(run("readelf", "-d", path))}
    undefined = {word for path in own for word in run("nm", "-D", "--undefined-only", path).split() if len(word) > 1}
    work.mkdir()
    for name in sorted(each for each in needed if CUDA.fullmatch(each) and not each.startswith(STANDS_IN)):
        versioned = {symbol.partition("@")[0] for symbol in undefined if symbol.endswith(f"@{name}")}
        prefix = name[3:].partition(".")[0]
        plain = {symbol for symbol in undefined if symbol.startswith(prefix) and "@" not in symbol}
        source, script = work / f"{name}.c", work / f"{name}.map"
        functions = "".join(f"int {symbol}(void) {{ return 1; }}\n" for symbol in sorted(versioned | plain))
        source.write_text(functions, encoding="ascii")
        script.write_text(f"{name} {{ global: *; }};\n", encoding="ascii")
        link = [f"-Wl,-soname,{name}", *([f"-Wl,--version-script,{script}"] if versioned else [])]
        run("cc", "-shared", "-fPIC", "-fno-builtin", *link, "-o", libraries / name, source)


def run(*argv: object) -> str:
    return subprocess.run([str(word) for word in argv], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
