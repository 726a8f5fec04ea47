"""The texts that users read, and the patterns that docs/dev/writing.md bans from them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, TypeGuard

import click

from house import ROOT, nodes_of
from serried.cli import serried

BANNED = {
    "is no": r"\b(is|are|was|were) (no|none)\b(?! (longer|more|less|fewer|larger)\b)",
    "goes on": r"\b(go|goes|going|gone|went) on\b",
    "of it": r"\bof it\b",
    "told, heard": r"\b(told|heard)\b",
    "said": r"\bsaid\b",
    "asked": r"\basked\b",
    "made": r"\bmade\b",
    "is found": r"\b(is|are|be|been|was|were)( not)? found\b",
    "nobody": r"\b(nobody|no one|somebody|whoever)\b",
    "knows of": r"\b(know|knows|known|speak|speaks|spoken) (nothing )?of\b",
    "anew": r"\banew\b",
    "shall": r"\bshall\b",
    "element": r"\belements?\b",
    "verb": r"\bverbs?\b",
    "What …, who …, whether …": r"(?:^[-*|>\s]*|[.;:|] )(What|Who|Whether)\b(?![^.]*\?)",
}
"""What docs/dev/writing.md calls each, and the expression that finds it."""


class Text(NamedTuple):
    where: str
    """The file, from the repository's root; for help, the command."""
    line: int
    text: str


def banned_in(text: str) -> list[str]:
    return [name for name, pattern in BANNED.items() if re.search(pattern, text)]


@cache
def texts() -> tuple[Text, ...]:
    return (*_messages(), *_helps(), *_pages())


def _messages() -> Iterator[Text]:
    """Every string of three words or more that is no docstring: messages, hints, labels, warnings."""
    for path in sorted((ROOT / "src" / "serried").rglob("*.py")):
        where = str(path.relative_to(ROOT))
        silent: set[int] = set()  # docstrings, and the parts of f-strings
        for node in nodes_of(path):
            if isinstance(node, ast.Expr):
                silent.add(id(node.value))
            elif _is_string(node) and id(node) not in silent:
                if isinstance(node, ast.JoinedStr):
                    silent.update(map(id, node.values))
                if len((text := _text_of(node)).split()) > 2:
                    yield Text(where, node.lineno, text)


def _is_string(node: ast.AST) -> TypeGuard[ast.JoinedStr | ast.Constant]:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _text_of(node: ast.JoinedStr | ast.Constant) -> str:
    values = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(value.value) if isinstance(value, ast.Constant) else "X" for value in values)


def _helps(command: click.Command = serried, name: str = "serried") -> Iterator[Text]:
    context = click.Context(command, info_name=name, terminal_width=200, max_content_width=200)
    for number, line in enumerate(command.get_help(context).splitlines(), 1):
        yield Text(f"{name} --help", number, line)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _helps(found, f"{name} {inner}")


def _pages() -> Iterator[Text]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        is_code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            if not is_code and not line.startswith("    ") and path.name != "writing.md":
                yield Text(str(path.relative_to(ROOT)), number, re.sub("`[^`]*`", "`X`", line))
