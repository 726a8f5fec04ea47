"""`python -I -S agent.pyz ROLE …`: each role imports only what it needs, because every start counts.

As the main module of agent.pyz, this module also imports the others from there. Python's own `zipimport` opens the
archive twice for each module, and decodes the module's code twice. Each call may be a round trip to a parallel file
system.
"""

from __future__ import annotations

import _frozen_importlib_external  # loaded already
import gc
import importlib
import marshal
import os
import sys

TYPE_CHECKING = False  # as in `typing`, which is loaded later
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, List, Mapping, Optional, Tuple
    from zipimport import zipimporter

ROLES = {
    "head": "head.head",
    "node": "node",
    "rank": "launchers.programs:rank",
    "remote": "launchers.programs:ssh",
    "launch": "launchers.interception",
    "outside": "launchers.interception:outside",
    "record-failure": "launchers.interception:record_failure",
    "rank-through": "launchers.programs:rank_through",
    "fail-setup": "finish:fail_setup",
    "finish": "finish",
    "stage-out": "stage_out.worker",
    "copy-image": "containers",
    "stage-in": "stage_in.worker",
    "sample": "sampling.worker",
    "check": "checks.worker",
    "probe": "checks.probe",
    "submit-next": "attempts.successor_jobs",
    "search": "trials.search",
    "draw": "trials.draw",
    "notify": "notifications",
    "attach": "attach",
    "stacks": "stacks.worker",
    "shell": "shell",
    "tunnel": "tunnel",
    "sweep": "orphans",
    "fetch": "stage_out.worker:fetch",
    "tidy": "node_disk.cleanup",
}
"""The module of each role, and its function unless that is `main`.

Later versions run `fetch` and `tidy` of older agents: these names never change.
"""


bootstrap: Any = _frozen_importlib_external
LOCAL_HEADER_BYTES = 30
PYC_HEADER_BYTES = 16


class ArchiveModules:
    """Finds and loads the modules in agent.pyz, through one open file."""

    def __init__(self, importer: zipimporter, directory: Mapping[str, Tuple[Any, ...]]) -> None:
        """`directory` has the size and the offset of each entry, by name, as `zipimport` reads them."""
        self._importer = importer
        self._directory = directory
        self._file = os.open(importer.archive, os.O_RDONLY)
        known = "serried/agent/__main__.pyc"
        has_our_byte_code = known in directory and self._read(known)[:4] == bootstrap.MAGIC_NUMBER
        self._suffixes = (".pyc", ".py") if has_our_byte_code else (".py",)

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Optional[ModuleSpec]:
        below = name.replace(".", "/")
        for suffix in self._suffixes:
            for entry in (f"{below}{suffix}", f"{below}/__init__{suffix}"):
                if entry in self._directory:
                    path = f"{self._importer.archive}/{entry}"
                    within = [path.rpartition("/")[0]] if "/__init__." in entry else None
                    spec: ModuleSpec = bootstrap.spec_from_file_location(
                        name, path, loader=self, submodule_search_locations=within
                    )
                    spec.loader_state = entry
                    return spec
        return None

    def create_module(self, _spec: ModuleSpec) -> None:
        """Python creates it."""

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        content = self._read(spec.loader_state)
        if spec.loader_state.endswith(".pyc"):
            code = marshal.loads(content[PYC_HEADER_BYTES:])  # noqa: S302 - our own file
        else:
            code = compile(content, spec.origin, "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102

    def get_source(self, name: str) -> Optional[str]:
        """For tracebacks."""
        return self._importer.get_source(name)

    def _read(self, entry: str) -> bytes:
        _, _, size, _, offset, *_ = self._directory[entry]
        return os.pread(self._file, size, offset + LOCAL_HEADER_BYTES + len(entry))


def import_through_one_open_file() -> None:
    """If this is the main module of an archive, import by the finder above."""
    importer: Any = sys.path_importer_cache.get(sys.path[0]) if sys.path else None
    # Not documented, but in all Pythons: without it, `zipimport` imports all.
    directories = getattr(sys.modules.get("zipimport"), "_zip_directory_cache", {})
    directory = directories.get(getattr(importer, "archive", ""))
    if directory:
        sys.meta_path.insert(0, ArchiveModules(importer, directory))


def main(arguments: List[str]) -> int:
    role, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if role not in ROLES:
        print(f"serried agent: unknown role `{role}`; the roles are {', '.join(ROLES)}", file=sys.stderr)
        return 2
    name, _, function = ROLES[role].partition(":")
    gc.disable()  # it would look through the modules again and again while they load
    module = importlib.import_module(f"serried.agent.{name}")
    gc.enable()
    status: int = getattr(module, function or "main")(rest)
    return status


if __name__ == "__main__":
    import_through_one_open_file()
    sys.exit(main(sys.argv[1:]))
