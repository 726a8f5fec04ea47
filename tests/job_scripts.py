"""What the import of each script in `importing/scripts/` has to be. Run, it writes that to `importing/expected/`."""

from __future__ import annotations

from pathlib import Path

from serried import importing

HERE = Path(__file__).parent / "importing"
SCRIPTS = sorted((HERE / "scripts").iterdir())


def expected(script: Path) -> Path:
    return HERE / "expected" / f"{script.name}.txt"


def shown(script: Path) -> str:
    """The serried.toml, and below a line of dashes what became of each line."""
    imported = importing.read(script.read_bytes(), script.name)
    rows = [f"{each.number:>3}  {each.fate:<8}  {each.text}\n{'':15}{each.why}\n" for each in imported.lines]
    return importing.text(imported, script.name) + "-" * 80 + "\n" + "".join(rows)


if __name__ == "__main__":
    for each in SCRIPTS:
        expected(each).write_text(shown(each), encoding="utf-8")
