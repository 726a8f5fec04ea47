"""Checkpoints of other programs: how frameworks lay them out, their steps, and whether one is complete.

Nothing is unpickled, and little of each file is read (`base/file_integrity.py`).
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Dict, Iterable, Iterator, NamedTuple, Optional, Sequence, Tuple

from serried.base import file_integrity

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*", "*model*.bin", "global_step*")
OPTIMIZER = ("optimizer*", "pytorch_model", "global_step*")
"""DeepSpeed writes `global_step*` and `pytorch_model` into the folder of another framework."""


class Layout(NamedTuple):
    """A checkpoint that is a folder."""

    name: str
    """A regular expression for the folder's name."""
    signs: Sequence[str]
    """Patterns of files, one of which identifies the layout; empty if the folder's name is enough."""
    needs: Sequence[Sequence[str]]
    """Groups of patterns. A complete checkpoint has a match for each group."""
    pointer: str = ""
    """A file beside the folder that names the newest complete checkpoint."""


FOLDERS = {
    "transformers": Layout(
        r"checkpoint-\d+",
        ("trainer_state.json", "training_args.bin", "config.json", "adapter_config.json"),
        (("trainer_state.json",), WEIGHTS, OPTIMIZER),
    ),
    "accelerate": Layout(
        r".*",
        ("random_states_*.pkl", "optimizer.bin", "optimizer_*.bin"),
        (("random_states_0.pkl",), WEIGHTS, OPTIMIZER),
    ),
    "torch.distributed.checkpoint": Layout(r".*", ("*.distcp", ".metadata"), ((".metadata",),)),
    "deepspeed": Layout(r"global_step\d+", (), (("*model_states.pt",),), pointer="latest"),
    "megatron": Layout(r"iter_\d+", (), (), pointer="latest_checkpointed_iteration.txt"),
}
"""By framework, in order of precedence."""

FILES = {
    "lightning": r"(last(-v\d+)?|(.*[-_])?(epoch|step)=\d+.*)\.ckpt",
    "timm": r"(last|checkpoint-\d+|model_best)\.pth\.tar",
}
"""Names that are specific enough for a search in nested folders such as `lightning_logs/version_3/checkpoints`."""
DEPTH = 4
OTHER_FILES = {
    "nanogpt": r"ckpt\.pt",
    "other": r"(?i).*\.(ckpt|keras|weights\.h5)"
    r"|(.*[-_.])?(ckpt|checkpoint|last|latest|(epoch|step|iter)[-_=]?\d+)([-_.].*)?\.(pt|pth|bin|h5|npz|pkl|safetensors)"
    r"|ckpt-\d+\.index",
}
"""Names that mean a checkpoint wherever a program writes them. In `{checkpoints}` every file may be one."""
OPTIONS = {
    "lightning": "--default_root_dir {checkpoints} {resume:--ckpt_path=}",
    "transformers": "--output_dir {checkpoints} {resume:--resume_from_checkpoint=}",
    "accelerate": "--output_dir {checkpoints} {resume:--resume_from_checkpoint=}",
    "nanogpt": "--out_dir={checkpoints} '{resume?--init_from=resume}'",
}
"""Words of a command by which a program of that framework keeps its checkpoints and resumes, as its page has them."""
SIGNS = {
    "lightning": rb"(?m)^\s*(?:import|from)\s+(?:lightning|pytorch_lightning)\b",
    "transformers": rb"(?m)^\s*(?:import|from)\s+transformers\b(?s:.*)\bTrain(?:er|ingArguments)\b",
    "accelerate": rb"(?m)^\s*(?:import|from)\s+accelerate\b",
    "nanogpt": rb"\binit_from\b",
}
"""Regular expressions for the code of programs of these frameworks, in order of precedence."""

NEVER_FILES = (
    *("*.log", "*.out", "*.err", "*.txt", "*.md", "*.rst", "*.csv", "*.tsv", "*.html", "*.jsonl", "*.yaml", "*.yml"),
    *("*.toml", "*.ini", "*.png", "*.jpg", "*.svg", "*.pdf", "*.py", "*.sh", "*tfevents*", "*.lock", "license*"),
    *("*config*.json", "*args*.json", "*params*.json", "*results*.json", "*metrics*.json", "*summary*.json"),
    *("*history*.json", "*index.json", "trainer_state.json", "training_args.bin", "scaler.pt", "scheduler.pt"),
    *("rng_state*.pth", "tokenizer*", "vocab.*", "merges.*", "special_tokens_map.json", "added_tokens.json"),
    *("spiece.model", "chat_template*", "latest"),
)
"""Files that describe a training or are part of a checkpoint, in lower case."""
NEVER_FOLDERS = ("wandb", "mlruns", "__pycache__")
SECONDARY = (
    *("*best*", "*final*", "*.json", "model*.safetensors", "pytorch_model*.bin", "adapter_model*", "optimizer.pt"),
)
"""Last resorts: copies of older checkpoints, and weights without the rest."""
LAST = r"(?i)(last|latest)(-v\d+)?(?=\.)"
"""A regular expression for the file that each save overwrites."""
_NUMBER = re.compile(r"\d+")
_NAMED = r"(?i)(epoch|global_?step|step|iteration|iter)s?[-_=. ]?(\d+)"


def is_never(name: str) -> bool:
    return _is_any((name.lower(),), NEVER_FILES)


def is_secondary(name: str) -> bool:
    return _is_any((name.lower(),), SECONDARY)


def of_folder(path: Path) -> Optional[Layout]:
    """The layout by the folder's name and content."""
    content = _names(path)
    if not content:
        return None
    for layout in FOLDERS.values():
        if re.fullmatch(layout.name, path.name) and (not layout.signs or _is_any(content, layout.signs)):
            return layout
    return None


def framework_of(path: Path) -> Optional[str]:
    """The framework that names its checkpoints so, `other` without a known one; None if it is not a checkpoint."""
    if path.is_dir():
        layout = of_folder(path)
        return next((name for name, known in FOLDERS.items() if known is layout), None)
    return next((name for name, form in {**FILES, **OTHER_FILES}.items() if re.fullmatch(form, path.name)), None)


def framework_of_code(code: bytes) -> Optional[str]:
    return next((name for name, sign in SIGNS.items() if re.search(sign, code)), None)


def has_all(path: Path, layout: Layout) -> bool:
    """Whether the checkpoint has all its files, some of which may be torn."""
    content = _names(path)
    return all(_is_any(content, group) for group in layout.needs) and not _is_ahead(path, layout.pointer)


def _is_ahead(path: Path, pointer: str) -> bool:
    """Whether the checkpoint is newer than the complete one that `pointer` names."""
    try:
        newest = (path.parent / pointer).read_text(encoding="utf-8", errors="replace") if pointer else ""
    except OSError:
        return False
    named, own = _NUMBER.findall(newest), _NUMBER.findall(path.name)
    return bool(named and own) and int(own[-1]) > int(named[-1])


def recognised(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The checkpoints of known frameworks in `folder` and the folders below it."""
    for name in sorted(_names(folder)):
        path = folder / name
        if name.startswith(".") or name in NEVER_FOLDERS:
            continue
        if path.is_dir():
            if of_folder(path):
                yield path
            elif depth:
                yield from recognised(path, depth - 1)
        elif any(re.fullmatch(pattern, name) for pattern in FILES.values()):
            yield path


def order_of(relative: str) -> Tuple[int, ...]:
    """A sort key from the numbers in a path. Keys of one `series` are comparable."""
    above, _, name = relative.rpartition("/")
    numbers = [int(digits) for digits in _NUMBER.findall(above)]
    named = _counters(name)
    return (*numbers, *(named[term] for term in terms(name))) if named else (*numbers, *map(int, _NUMBER.findall(name)))


def terms(name: str) -> Sequence[str]:
    """The meanings of the numbers in a name: `epoch`, `step`, both, or none if unknown."""
    return [term for term in ("epoch", "step") if term in _counters(name)]


def _counters(name: str) -> Dict[str, int]:
    counters = reversed(re.findall(_NAMED, name))
    return {"epoch" if word.lower() == "epoch" else "step": int(number) for word, number in counters}


def series(relative: str) -> str:
    """The series of `epoch=3-step=400.ckpt` is `epoch=#-step=#.ckpt`."""
    return _NUMBER.sub("#", relative)


def _is_any(names: Iterable[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _names(folder: Path) -> Sequence[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - no stat
    except OSError:
        return ()


MOST_FILES = 10_000
"""The most files of a folder to check, because each takes a round trip on a shared file system."""
_POINTERS = ("latest", "latest_checkpointed_iteration.txt")
"""Files of DeepSpeed and Megatron that name the folder beside them."""


def is_log(name: str) -> bool:
    """Whether a file of this name is a log or a pointer to checkpoints, and not a checkpoint itself."""
    return fnmatchcase(name, "*tfevents*") or name in _POINTERS


def is_complete(path: Path, watch: Sequence[str] = ()) -> bool:
    """Whether the file or folder at `path` exists, has content, and no file in it is truncated."""
    try:
        if path.is_dir():
            return _is_complete_folder(path)
        return (
            path.is_file() and not is_no_checkpoint(path.name, watch) and file_integrity.is_complete(path) is not False
        )
    except OSError:
        return False


def is_no_checkpoint(name: str, watch: Sequence[str] = ()) -> bool:
    """Whether a file of this name is not a checkpoint, whatever it contains.

    A pattern of `watch` for such files alone, `state.txt` or `*.out`, selects them. A pattern such as `*` does not.
    """
    meant = [last for last in (pattern.rpartition("/")[2] for pattern in watch) if is_never(last)]
    return is_log(name) or (is_never(name) and not any(fnmatchcase(name, last) for last in meant))


def has_logs_alone(folder: Path) -> bool:
    return all(is_no_checkpoint(name) for _, name in inside(folder))


def _is_complete_folder(path: Path) -> bool:
    """Complete by the layout of its framework; without a known framework, some content and no truncated file."""
    layout = of_folder(path)
    if layout and not has_all(path, layout):
        return False
    content = [(folder, name) for folder, name in inside(path) if not is_log(name)]
    shards = {folder for folder, name in content if name.endswith(".distcp")}
    if any(not Path(folder, ".metadata").exists() for folder in shards):
        return False
    files = [path for path in (Path(folder, name) for folder, name in content) if _has_content(path)]
    is_none = all(is_no_checkpoint(file.name) for file in files)
    return not is_none and all(file_integrity.is_complete(file) is not False for file in files)


def _has_content(path: Path) -> bool:
    """An empty file beside others is a mark and not a truncated file."""
    status = path.stat()
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def inside(path: Path) -> Iterator[Tuple[str, str]]:
    """The files in a folder, as folder and name, up to `MOST_FILES`."""
    files = ((folder, name) for folder, _, names in os.walk(path) for name in names)
    return itertools.islice(files, MOST_FILES)
