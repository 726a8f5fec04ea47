"""New projects, as `serried init --template NAME` writes them: a folder for each, and `common` for all.

The files are copied byte for byte; `dot-gitignore` becomes `.gitignore`.
"""

from __future__ import annotations

from pathlib import Path

TEMPLATES = {
    "plain": "PyTorch alone, as torchrun starts it",
    "train": "the training library: data, checkpoints, stopping in time",
    "lightning": "a LightningModule and its Trainer, stopping in time",
    "stream": "records read one after the other from files, each once an epoch",
}
"""With a description of each."""

_FOLDER = Path(__file__).parent
_COMMON = "common"


def files(template: str) -> dict[str, bytes]:
    """The content of each file of a template, by its name in the project."""
    paths = [path for folder in (_COMMON, template) for path in (_FOLDER / folder).iterdir() if path.is_file()]
    return {_named(path.name): path.read_bytes() for path in sorted(paths, key=lambda path: _named(path.name))}


def _named(name: str) -> str:
    return f".{name.removeprefix('dot-')}" if name.startswith("dot-") else name
