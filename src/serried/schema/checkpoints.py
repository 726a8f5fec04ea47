"""Finds the newest complete checkpoint in a directory, at submit time and when an attempt begins.

`serried.train` writes `step-N/` with a COMPLETE that names every file and its size. Checkpoints of other programs are
recognised by the layouts of their frameworks, and ordered by the numbers in their names. Of several series the one that
changed last counts. Truncated checkpoints never count: torch.save's zip and safetensors state their length. Nothing is
unpickled, and little of each file is read.

`is_complete` decides for a file or a folder of any program. `agent/stage_out` also waits until no program writes it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from serried.base import NamedTuple, tree
from serried.base.files import read_json

SCHEMA = 1
COMPLETE = "COMPLETE"
REPLICATED = "replicated.pt"
OWNER = ".owner"
"""The file that names the round whose ranks may change a directory."""
_STEP = r"step-(\d{1,18})"
_OURS = r"step-\d{1,18}((\.\d+-\d+)?\.tmp|\.torn\.tmp|\.corrupt)?"
"""Complete, torn, unfinished and corrupt checkpoints of `serried.train`."""
IN_CHECKPOINTS, IN_SCRATCH = "{checkpoints}/", ("$SLURM_TMPDIR/", "${SLURM_TMPDIR}/")
LOCAL = (IN_CHECKPOINTS, *IN_SCRATCH)
"""The beginnings of patterns of `checkpoint.watch` for files on the node's own disk."""
SET_ASIDE = ".corrupt"
"""The suffix of a checkpoint whose files do not agree with its COMPLETE."""
_UNFINISHED = r"\..*|.*(\.tmp|\.part|\.corrupt|~)"
MOST_FILES = 10_000
"""The most files of a folder to check, because each takes a round trip on a shared file system."""
_POINTERS = ("latest", "latest_checkpointed_iteration.txt")
"""Files of DeepSpeed and Megatron that name the folder beside them."""
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
_NUMBER = r"\d+"
_NAMED = r"(?i)(epoch|global_?step|step|iteration|iter)s?[-_=. ]?(\d+)"
_ENTRY, _DIRECTORY, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END_64 = b"PK\x06\x06"
_LONGEST_END = 22 + 65535
_LONGEST_HEADER = 100 << 20
"""The longest header that the reader of safetensors accepts."""
_MOST_PICKLED = 1 << 20
_COUNTERS = ("epoch", "global_step", "iter_num", "step")
"""Keys of the dictionaries that Lightning, timm, nanoGPT and most loops save."""


def complete(path: Path) -> Optional[Dict[str, Any]]:
    """The content of COMPLETE; None if the checkpoint in `path` is torn. Compares sizes and reads no other file."""
    document = read_json(path / COMPLETE)
    try:
        if document is None or document["schema"] != SCHEMA:
            return None
        sizes = {name: file["size"] for name, file in document["files"].items()}
        is_complete = all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return document if is_complete else None


def steps(root: Path) -> List[int]:
    """The steps that have a directory, the newest first, complete or not."""
    numbers = (step_of(name) for name in _names(root))
    return sorted((step for step in numbers if step is not None), reverse=True)


def directory_of(root: Path, step: int) -> Path:
    return root / f"step-{step}"


def step_of(name: str) -> Optional[int]:
    """The step in a directory's name; None for other and unfinished directories."""
    match = re.fullmatch(_STEP, name)
    return int(match[1]) if match else None


def newest(root: Path, watch: Sequence[str] = ()) -> Optional[Path]:
    """The newest complete checkpoint in `root`; None if the directory has none or does not exist.

    `watch` has the patterns by which checkpoints were copied to `root`. They select more precisely than the top level.
    """
    if is_of_train(root):
        wholes = (directory_of(root, step) for step in steps(root))
        return next((path for path in wholes if complete(path) is not None), None)
    return next((path for path in ordered(root, watch) if is_complete(path, watch)), None)


def torn(root: Path, watch: Sequence[str] = ()) -> List[Path]:
    """The incomplete checkpoints that are newer than the newest complete one, the oldest first."""
    usable = newest(root, watch)
    if not is_of_train(root):
        entries = ordered(root, watch)
        later = entries[: entries.index(usable)] if usable in entries else entries
        return [
            path
            for path in reversed(later)
            if not (path.is_dir() and all(is_no_checkpoint(name) for _, name in inside(path)))
        ]
    least = step_of(usable.name) if usable is not None else None
    begun = [name for name in _names(root) if re.fullmatch(_OURS, name) and not name.endswith(SET_ASIDE)]
    steps_begun = sorted((step_of(name.partition(".")[0]) or 0, root / name) for name in begun)
    return [path for step, path in steps_begun if least is None or step > least]


def ordered(root: Path, watch: Sequence[str] = ()) -> List[Path]:
    """The checkpoints of other programs in `root`, complete or not, the newest first.

    Within a series the numbers in names decide, because copies have the times of copying. Between series the times
    decide.
    """
    entries = [
        path
        for path in sorted(set(_watched(root, watch)) or set(_entries(root)))
        if not (is_unfinished(path.name) or is_no_checkpoint(path.name, watch))
    ]
    series: Dict[str, List[Path]] = {}
    for path in entries:
        if not re.match(LAST, path.name):
            # The series of `epoch=3-step=400.ckpt` is `epoch=#-step=#.ckpt`.
            series.setdefault(re.sub(_NUMBER, "#", _relative(root, path)), []).append(path)
    ages = {path: changed_within(path) for path in entries}
    ranks: Dict[Path, Tuple[Any, ...]] = {}
    for name, members in series.items():
        last = [path for path in entries if path not in ranks and _is_last_of(path, members)]
        main = (not is_secondary(members[0].name), max(ages[path] for path in (*members, *last)), name)
        ranks.update({path: (*main, order_of(_relative(root, path)), ages[path]) for path in members})
        ranks.update({path: (*main, _order_of_last(root, path, members[0]), ages[path]) for path in last})
    alone = (path for path in entries if path not in ranks)
    ranks.update({path: (True, ages[path], path.name, (), 0) for path in alone})
    return sorted(entries, key=ranks.__getitem__, reverse=True)


def _entries(root: Path) -> Iterator[Path]:
    """The entries at the top, and the checkpoints of known frameworks in folders."""
    for name in _names(root):
        path = root / name
        if name.startswith(".") or name in NEVER_FOLDERS:
            continue
        is_folder = path.is_dir() and not is_unfinished(name)
        below = list(recognised(path)) if is_folder and not of_folder(path) else []
        yield from below or [path]


def _relative(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _is_last_of(path: Path, series: Sequence[Path]) -> bool:
    """Whether `last.ckpt` belongs to a numbered series such as `epoch=3-step=400.ckpt`: beside it, with its suffix."""
    matched, name = re.match(LAST, path.name), series[0].name
    if matched is None or is_secondary(name) or not any(map(str.isdigit, name)):
        return False
    return name.endswith(path.name[matched.end() :]) and any(path.parent == member.parent for member in series)


def _order_of_last(root: Path, path: Path, other: Path) -> Tuple[float, ...]:
    """The order by the counters in its content, in the terms of the names beside it; without them after all others."""
    above = order_of(_relative(root, path.parent / "last"))
    counters = saved_counters(path)
    step = counters.get("global_step", counters.get("iter_num", counters.get("step")))
    values = {"epoch": counters.get("epoch"), "step": step}
    needed = [values[term] for term in terms(other.name)]
    known = tuple(value for value in needed if value is not None)
    return (*above, *known) if known and len(known) == len(needed) else (*above, float("inf"))


def _watched(root: Path, watch: Sequence[str]) -> Iterator[Path]:
    """The copies of watched checkpoints, which are below `node-N` if another node has copied the same name before."""
    for watched in watch:
        below = next((watched[len(prefix) :] for prefix in LOCAL if watched.startswith(prefix)), watched)
        pattern = below[len(tree.beginning(below)) :].lstrip("/")  # copies keep their names from the first wildcard on
        for place in (pattern, f"node-*/{pattern}"):
            yield from (root / path for path, _ in tree.find(str(root), place, lambda _: None))


def changed_within(path: Path) -> int:
    """The newest time of `path` and its files, because a rewritten folder may keep the names of its files."""
    files = (changed(Path(folder, name)) for folder, name in inside(path))
    return max(changed(path), max(files, default=0))


def is_of_train(root: Path) -> bool:
    """Whether the checkpoints in `root` are those of `serried.train`. Other programs use the name `step-N` too."""
    content = [name for name in _names(root) if name != OWNER]
    begun = [name for name in content if re.fullmatch(_OURS, name)]
    named = [name for name in begun if step_of(name) is not None]
    if any(not {COMPLETE, REPLICATED}.isdisjoint(_names(root / name)) for name in named):
        return True
    return bool(content) and begun == content and not named


def is_unfinished(name: str) -> bool:
    """Whether a name marks an unfinished or corrupt file, by the conventions of Serried and of most programs."""
    return re.fullmatch(_UNFINISHED, name) is not None


def changed(path: Path) -> int:
    """The modification time of `path` in nanoseconds, by the file server's clock; 0 if it does not exist."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def _names(root: Path) -> List[str]:
    try:
        return os.listdir(root)  # noqa: PTH208 - no stat
    except OSError:
        return []


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
    """Whether the checkpoint has all its files, some perhaps torn, and is not newer than what the pointer names."""
    content = _names(path)
    if not all(_is_any(content, group) for group in layout.needs):
        return False
    try:
        newest = (path.parent / layout.pointer).read_text(encoding="utf-8", errors="replace") if layout.pointer else ""
    except OSError:
        return True
    named, own = re.findall(_NUMBER, newest), re.findall(_NUMBER, path.name)
    return not (named and own) or int(own[-1]) <= int(named[-1])


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
    """A sort key from the numbers in a path. Keys of one series are comparable."""
    above, _, name = relative.rpartition("/")
    numbers = [int(digits) for digits in re.findall(_NUMBER, above)]
    named = _counters(name)
    own = [named[term] for term in terms(name)] if named else map(int, re.findall(_NUMBER, name))
    return (*numbers, *own)


def terms(name: str) -> Sequence[str]:
    """The meanings of the numbers in a name: `epoch`, `step`, both, or none if unknown."""
    return [term for term in ("epoch", "step") if term in _counters(name)]


def _counters(name: str) -> Dict[str, int]:
    counters = reversed(re.findall(_NAMED, name))
    return {"epoch" if word.lower() == "epoch" else "step": int(number) for word, number in counters}


def _is_any(names: Iterable[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def is_log(name: str) -> bool:
    """Whether a file of this name is a log or a pointer to checkpoints, and not a checkpoint itself."""
    return fnmatchcase(name, "*tfevents*") or name in _POINTERS


def is_complete(path: Path, watch: Sequence[str] = ()) -> bool:
    """Whether the file or folder at `path` exists, has content, and no file in it is truncated."""
    try:
        if path.is_dir():
            return _is_complete_folder(path)
        return path.is_file() and not is_no_checkpoint(path.name, watch) and is_complete_file(path) is not False
    except OSError:
        return False


def is_no_checkpoint(name: str, watch: Sequence[str] = ()) -> bool:
    """Whether a file of this name is not a checkpoint, whatever it contains.

    A pattern of `watch` for such files alone, `state.txt` or `*.out`, selects them. A pattern such as `*` does not.
    """
    meant = [last for last in (pattern.rpartition("/")[2] for pattern in watch) if is_never(last)]
    return is_log(name) or (is_never(name) and not any(fnmatchcase(name, last) for last in meant))


def _is_complete_folder(path: Path) -> bool:
    """Complete by its COMPLETE or the layout of its framework; else some content and no truncated file."""
    document = read_json(path / COMPLETE)
    is_ours = step_of(path.name) is not None or (isinstance(document, dict) and "files" in document)
    if is_ours and (path / COMPLETE).exists():  # other programs have files of this name too
        return complete(path) is not None
    layout = of_folder(path)
    if layout and not has_all(path, layout):
        return False
    content = [(folder, name) for folder, name in inside(path) if not is_log(name)]
    shards = {folder for folder, name in content if name.endswith(".distcp")}
    if any(not Path(folder, ".metadata").exists() for folder in shards):
        return False
    states = {file: file.stat() for file in (Path(folder, name) for folder, name in content)}
    # An empty file beside others is a mark and not a truncated file.
    files = [file for file, state in states.items() if stat.S_ISREG(state.st_mode) and state.st_size > 0]
    is_none = all(is_no_checkpoint(file.name) for file in files)
    return not is_none and all(is_complete_file(file) is not False for file in files)


def inside(path: Path) -> Iterator[Tuple[str, str]]:
    """The files in a folder, as folder and name, up to `MOST_FILES`."""
    files = ((folder, name) for folder, _, names in os.walk(path) for name in names)
    return itertools.islice(files, MOST_FILES)


def is_complete_file(path: Path) -> Optional[bool]:
    """Whether the file is not truncated; None if its format does not show that. An empty file is truncated.

    Reads only the parts that state the file's length. Raises OSError.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return False
        begin = file.read(8)
        if begin.startswith(_ENTRY) or (len(begin) < len(_ENTRY) and _ENTRY.startswith(begin)):
            return _is_complete_zip(file, size)
        if path.suffix == ".safetensors":
            return _is_complete_safetensors(file, begin, size)
    return None


def _is_complete_zip(file: BinaryIO, size: int) -> bool:
    """Whether the last bytes of the file point to the zip's directory."""
    file.seek(max(0, size - _LONGEST_END))
    tail = file.read(_LONGEST_END)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22 or len(tail) - at != 22 + _little_endian(tail[at + 20 : at + 22]):
        return False
    length, start = _little_endian(tail[at + 12 : at + 16]), _little_endian(tail[at + 16 : at + 20])
    end = size - len(tail) + at
    if start == 0xFFFFFFFF or length == 0xFFFFFFFF:
        if at < 20:
            return False
        start = _little_endian(tail[at - 12 : at - 4])
        file.seek(start)
        return bool(start < end and file.read(4) == _END_64)
    file.seek(start)
    return start + length <= end and file.read(4) in (_DIRECTORY, _END)


def _little_endian(content: bytes) -> int:
    return int.from_bytes(content, "little")


def _is_complete_safetensors(file: BinaryIO, begin: bytes, size: int) -> bool:
    if len(begin) < 8:
        return False
    length = _little_endian(begin[:8])
    if length > min(_LONGEST_HEADER, size - 8):
        return False
    try:
        header = json.loads(file.read(length))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        return bool(size == 8 + length + max(ends, default=0))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False


def saved_counters(path: Path) -> Dict[str, int]:
    """The values of `epoch`, `global_step` … in a file of `torch.save`. Reads the opcodes, and unpickles nothing."""
    import pickletools  # takes milliseconds, and few processes need it
    import zipfile

    values: Dict[str, int] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(pickled) as file:
                opcodes = file.read(_MOST_PICKLED)
        key = ""
        for opcode, value, _ in pickletools.genops(opcodes):
            if isinstance(value, str):
                key = value if opcode.name.endswith("UNICODE") else ""
            elif isinstance(value, int) and opcode.name.startswith(("BININT", "LONG")) and key in _COUNTERS:
                values.setdefault(key, value)
            if not opcode.name.endswith(("PUT", "MEMOIZE", "UNICODE")):
                key = ""
    except Exception:  # noqa: BLE001, S110 - zipfile raises a dozen kinds for damaged files, and zlib its own
        pass  # the values before the end of a pickle that is cut off at _MOST_PICKLED count
    return values
