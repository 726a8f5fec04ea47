"""The import of each script in `importing/scripts/`. As a program, this module writes it to `importing/expected/`."""

from __future__ import annotations

from pathlib import Path

from serried import importing
from serried.errors import UsageError

HERE = Path(__file__).parent / "importing"
SCRIPTS = sorted((HERE / "scripts").iterdir())


def expected(script: Path) -> Path:
    return HERE / "expected" / f"{script.name}.txt"


def shown(script: Path) -> str:
    """The serried.toml, and below lines of dashes the reasons, the lines that are not written, and suggestions."""
    try:
        imported = importing.read(script.read_bytes(), script.name)
    except UsageError as refusal:
        return f"refused: {refusal.message}\nhint: {refusal.hint}\n"
    parts = [importing.text(imported, script.name)]
    for rows in (imported.reasons, imported.dropped):
        parts += ["".join(f"{each.line:>3}  {each.text}\n{'':5}{each.why}\n" for each in rows)]
    parts.append("".join(f"{note}\n" for note in imported.notes))
    for each in imported.suggestions:
        pasted = (each.toml or each.command).replace("\n", f"\n{'':5}")
        parts[-1] += f"{each.line:>3}  {each.text}\n{'':5}{each.id}: {each.sentence}\n{'':5}{pasted}\n"
        parts[-1] += "".join(f"{'':5}{edit}\n" for edit in each.edits)
    return f"{'-' * 80}\n".join(parts)


if __name__ == "__main__":
    for path in SCRIPTS:
        expected(path).write_text(shown(path), encoding="utf-8")
