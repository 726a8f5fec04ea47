"""The import of each script in `importing/scripts/`. As a program, this module writes it to `importing/expected/`."""

from __future__ import annotations

from pathlib import Path

from serried import importing
from serried.base.errors import UsageError

HERE = Path(__file__).parent / "importing"
SCRIPTS = sorted((HERE / "scripts").iterdir())


def expected(script: Path) -> Path:
    return HERE / "expected" / f"{script.name}.txt"


def shown(script: Path) -> str:
    """The serried.toml, and below lines of dashes the notes and suggestions."""
    try:
        imported = importing.read(script.name, script.parent)
    except UsageError as refusal:
        return f"refused: {refusal.message}\nhint: {refusal.hint}\n"
    rows = "".join(f"{note}\n" for note in imported.notes)
    for each in imported.suggestions:
        pasted = (each.toml or each.command).replace("\n", f"\n{'':5}")
        rows += f"{each.line:>3}  {each.text}\n{'':5}{each.id}: {each.sentence}\n{'':5}{pasted}\n"
        rows += "".join(f"{'':5}{edit}\n" for edit in each.edits)
    return f"{imported.text}{'-' * 80}\n{rows}"


if __name__ == "__main__":
    for path in SCRIPTS:
        expected(path).write_text(shown(path), encoding="utf-8")
