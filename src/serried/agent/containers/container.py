"""The container that ranks run in: what goes before their words, what they see of the host, what they find set.

The agent stays outside, where the scheduler, the journals and the other nodes are, so a rank in a container is a rank
as any other: the runtime's process is the agent's child, and the program the runtime's. Paths are the same inside and
outside, so that no value has to be translated.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from serried.agent.attempt import Attempt
from serried.agent.containers import view
from serried.agent.node_disk.folder import DATA, SCRATCH
from serried.protocol import names
from serried.protocol.binds import Bind, for_apptainer, on_node

Words = List[str]

OF_THE_HOST = (
    "PATH", "LD_*", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "VIRTUAL_ENV*", "CONDA_*", "_CE_*", "PYENV_*",
    "MODULE*", "LMOD_*", "_LMFILES_*", "LOADEDMODULES*", "__LMOD_*", "_ModuleTable*", "BASH_*", "ENV", "PROMPT_COMMAND",
    "PS1", "SHELL", "OLDPWD", "PWD", "SHLVL", "_",
)  # fmt: skip
"""Name the host's programs and libraries, which are not there: never taken inside, unless the experiment sets them."""

OF_THE_JOB = (
    "SERRIED_*", "SLURM*", "PBS_*", "CUDA_*", "NVIDIA_*", "ROCR_*", "HIP_*", "GPU_DEVICE_ORDINAL", "ZE_*", "NCCL_*",
    "RCCL_*", "GLOO_*", "UCX_*", "FI_*", "OMPI_*", "PMI*", "MPI*", "HYDRA_*", "I_MPI_*", "HOROVOD_*", "OMP_*", "MKL_*",
    "OPENBLAS_*", "TORCH*", "PYTORCH_*", "ACCELERATE_*", "DS_*", "TF_CONFIG", "LANG", "LC_*", "TZ", "TERM", "USER",
    "LOGNAME", "HOME",
)  # fmt: skip
"""All that a contained rank inherits, beside what the experiment names: who it is, and what its share is."""

TOLD = "SERRIED_TOLD_"
"""Before a name, as long as the runtime and the image could change its value on the way."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHARLIECLOUD = "ch-run"
COPY = "image"
"""In the node's private folder: a link to the copy of the image, where this node has one."""


class Container:
    """Of one node, whose folder for this attempt is `private`."""

    def __init__(self, work: Attempt, private: Path) -> None:
        self._work = work
        self._said = work.plan["container"]
        self._program = str(self._said["runtime"])
        copy = private / COPY
        self._image = os.readlink(copy) if copy.is_symlink() else str(self._said["image"])  # noqa: PTH115
        self._private = private
        self._is_contained = bool(self._said["contained"])
        self._binds: Optional[List[Bind]] = None

    @property
    def is_charliecloud(self) -> bool:
        return self._program.endswith(CHARLIECLOUD)

    def inherited(self, environment: Mapping[str, str]) -> Dict[str, str]:
        """What of the agent's environment goes in."""
        said = self._named()
        kept = {name: it for name, it in environment.items() if name in said or not _matches(name, OF_THE_HOST)}
        if not self._is_contained:
            return kept
        inherit = self._work.plan["environment"]["inherit"]
        named = (*OF_THE_JOB, *said, *([] if isinstance(inherit, str) else inherit))
        return {name: value for name, value in kept.items() if _matches(name, named)}

    def enter(self, words: Sequence[str], environment: Mapping[str, str]) -> Tuple[Words, Dict[str, str]]:
        """The argv and the environment that run `words` inside with `environment`."""
        told = {name: environment[name] for name in ("HOME", *self._named()) if name in environment}
        told["PYTHONNOUSERSITE"] = environment.get("PYTHONNOUSERSITE", "1")  # ~/.local is the host's Python's
        told["TMPDIR"] = "/tmp" if self._is_contained else environment.get("TMPDIR", "/tmp")  # noqa: S108
        path = environment.get("PYTHONPATH", "")
        process = {**{name: value for name, value in environment.items() if name != "PYTHONPATH"}, **self._own()}
        process.update({TOLD + name: value for name, value in {**told, "PYTHONPATH": path}.items()})
        inside = ["/bin/sh", "-c", _takes(list(told)), "sh", *words]
        before = self._charliecloud() if self.is_charliecloud else self._apptainer()
        return [*before, *inside], process

    def _named(self) -> List[str]:
        """What the experiment sets: it wins over what the image sets."""
        said = self._work.plan["environment"]
        return [*said["env"], *said["secrets"], *said["env_file"]]

    def _own(self) -> Dict[str, str]:
        """What the runtime itself needs, and the container does not see as it is."""
        if self.is_charliecloud:
            return {"PATH": SYSTEM_PATH, "USER": os.environ.get("USER") or str(os.getuid())}
        kept = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "XDG_RUNTIME_DIR", "HOME")
        mine = {name: value for name, value in os.environ.items() if name.startswith(("APPTAINER", "SINGULARITY"))}
        return {**mine, **{name: os.environ[name] for name in kept if name in os.environ}}

    def _apptainer(self) -> Words:
        """Mounts that it makes by itself differ between sites: all that is needed is said.

        Not `--contain`: it gives each rank a /dev/shm of its own and hides InfiniBand, and NCCL needs both.
        """
        mounts: Words = []
        for bind in self.binds:
            mounts += for_apptainer(bind)
        return [
            found(self._program),
            "--quiet",
            "exec",
            "--no-home",
            *([_gpu_option()] if self._work.plan["allocation"]["gpus"] else []),
            *(["--writable-tmpfs"] if self._said.get("writable") else []),
            *mounts,
            *self._said.get("options", ()),
            "--pwd",
            str(self._work.workdir),
            self._image,
        ]

    def _charliecloud(self) -> Words:
        """It makes no mount points in an image that cannot be written, so a folder is seen through one of ours."""
        image, more = view.through(Path(self._image), self._private / "view", self.binds)
        mounts = [f"--bind={bind.source}:{bind.destination}" for bind in (*more, *self.binds)]
        options = self._said.get("options", ())
        return [found(self._program), *mounts, *options, f"--cd={self._work.workdir}", image, "--"]

    @property
    def binds(self) -> List[Bind]:
        if self._binds is None:
            self._binds = self._contained() if self._is_contained else self._open()
        return self._binds

    def _open(self) -> List[Bind]:
        home, temporary = os.environ.get("HOME", ""), os.environ.get("TMPDIR", "")
        wanted = [home, "/tmp", temporary, *self._needed()]  # noqa: S108 - the host's, as outside
        return view.covering([path for path in wanted if path and os.path.isdir(path)], self._users())  # noqa: PTH112

    def _contained(self) -> List[Bind]:
        """A home and a /tmp of this attempt's own; what is needed below them gets its place there."""
        home = os.environ.get("HOME", "")
        own = [("/tmp", "tmp"), ("/var/tmp", "var-tmp"), *([(home, "home")] if home else [])]  # noqa: S108
        binds = [Bind(str(self._private / name), place) for place, name in own]
        for bind in binds:
            os.makedirs(bind.source, mode=0o700, exist_ok=True)  # noqa: PTH103
        return [*binds, *view.within(binds, view.covering(self._needed(), self._users()))]

    def _users(self) -> List[Bind]:
        """What the experiment binds; a folder of this attempt's own, which nobody can have made before, is made."""
        local = os.environ.get("SLURM_TMPDIR") or str(self._private / SCRATCH)
        found = [on_node(bind, local) for bind in view.parsed(self._said["binds"])]
        for bind in found:
            if view.is_below(bind.source, local) and not os.path.exists(bind.source):  # noqa: PTH110
                os.makedirs(bind.source, mode=0o700, exist_ok=True)  # noqa: PTH103
        return found

    def _needed(self) -> List[str]:
        """What Serried's own variables and placeholders name."""
        work = self._work
        project = Path(work.plan["source"]["directory"])
        linked = [os.path.realpath(project / name) for name in work.plan["source"]["links"]]
        resume = os.environ.get(names.RESUME) or work.resume_from or ""
        disk = os.path.expandvars(work.plan["site"]["local_disk"] or "")
        data = work.plan.get("data") or {"stage": (), "in_place": ()}
        wanted = [
            str(work.run.path),
            _folder_of(work.run.library),
            os.path.dirname(os.path.realpath(work.run.library)),  # noqa: PTH120
            str(project),
            str(self._private),
            *linked,
            disk,
            str(self._private.parents[1] / DATA),
            *(item["source"] for item in data["stage"]),  # a node without a disk reads it there
            *data["in_place"],
            *work.dependencies,
            os.path.dirname(resume),  # noqa: PTH120
        ]
        return [path for path in wanted if path.startswith("/") and os.path.exists(path)]  # noqa: PTH110


def of(work: Attempt, private: Path) -> Optional[Container]:
    """None where ranks run in no container, or the agent itself is in it."""
    said = work.plan.get("container")
    return Container(work, private) if said and said["runtime"] != "pyxis" else None


def found(program: str) -> str:
    """Where the program is; as it is said where it is nowhere, for the message that it cannot be started."""
    if "/" in program:
        return program
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = f"{folder or '.'}/{program}"
        if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113
            return path
    return program


def _takes(told: Sequence[str]) -> str:
    """The shell's line that makes what was told hold inside, whatever the image sets, and becomes the program.

    The image's own PYTHONPATH comes behind ours; of Charliecloud's images, what their makers set is in a file.
    """
    lines = [
        'if [ -r /ch/environment ]; then while IFS= read -r it || [ -n "$it" ]; do',
        "case ${it%%=*} in ''|[0-9]*|*[!A-Za-z0-9_]*) ;; *) export \"$it\" ;; esac; done </ch/environment; fi",
        f'export PYTHONPATH="${TOLD}PYTHONPATH${{PYTHONPATH:+:$PYTHONPATH}}"',
        *(f'export {name}="${TOLD}{name}"' for name in told),
        f"unset {' '.join(TOLD + name for name in (*told, 'PYTHONPATH'))}",
        'exec "$@"',
    ]
    return "\n".join(lines)


def _folder_of(path: Path) -> str:
    """That a link leads to as it is spelled: inside, each folder on the way must be there by its own name."""
    target = os.readlink(path) if path.is_symlink() else ""  # noqa: PTH115
    return os.path.dirname(os.path.normpath(path.parent / target)) if target else str(path.parent)  # noqa: PTH120


def _gpu_option() -> str:
    return "--rocm" if os.path.exists("/dev/kfd") and not os.path.exists("/dev/nvidiactl") else "--nv"  # noqa: PTH110


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
