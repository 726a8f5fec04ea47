"""No code decides on a sentence of ours: it compares codes. What another program printed may be read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch

import pytest

from house import ROOT, nodes_of

FOR_PEOPLE = {"message", "because", "meaning", "hint", "sentence", "problem"}
"""Names of attributes, variables and fields that hold sentences of ours."""
METHODS = {"startswith", "endswith", "find", "index", "partition", "rpartition", "split", "replace", "removeprefix"}
METHODS |= {"removesuffix", "search", "match", "fullmatch", "sub", "findall", "finditer", "compile"}
TWO_WORDS = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2,}")

WORDS_OF_OTHERS = {
    "cli/__init__.py": "of click",
    "agent/outcome/verdict.py": "of srun and slurmstepd",
    "agent/stage_in/archives.py": "of tar",
    "schedulers/local/cluster.py": "of nvidia-smi",
    "config/toml.py": "of tomllib",
    "lab/daemons.py": "of scontrol",
    "schema/failure_report.py": "of Python",
    "schema/stacks.py": "of Python",
    "records/why.py": "of the program, of containers, of Python and of launchers",
    "sweeps/wandb_service.py": "of wandb",
}
"""Modules that read what another program printed, and whose words these are."""

PARSERS = ("schedulers/*/parse.py", "schedulers/*/commands.py")
"""Modules that read what the commands of schedulers print."""

NO_SENTENCES = {
    "agent/stage_out/worker.py": "writes a problem once",
    "agent/system.py": "prints a problem once",
    "config/definitions.py": "turns the links of a help into references",
    "config/shell_words.py": "a grammar, with comments",
    "views/console.py": "turns names of pages into addresses",
}


def is_parser(where: str) -> bool:
    is_ours = where.startswith("schedulers/local/")
    return not is_ours and any(fnmatch(where, pattern) for pattern in PARSERS)


def test_no_code_decides_on_a_sentence_of_ours():
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src" / "serried").rglob("*.py")):
        where = str(path.relative_to(ROOT / "src" / "serried"))
        nodes = [f"{node.lineno}: {ast.unparse(node)}" for node in decided_on(nodes_of(path))]
        if nodes:
            found[where] = nodes
    excused = WORDS_OF_OTHERS.keys() | NO_SENTENCES.keys()
    assert {where: nodes for where, nodes in found.items() if where not in excused and not is_parser(where)} == {}
    assert excused - found.keys() == set(), "no longer needed here"


@pytest.mark.parametrize(
    "line",
    [
        'error.message == f"there is no experiment `{name}`"',
        '"scheduler" in event["because"]',
        'event["because"] == LAUNCHER_ENDED',
        'obstacle.text in end["message"]',
        're.search(r"\\bnode (\\S+) was lost", status.verdict.message or "")',
        '_SENTENCE.sub("; what had stayed was fetched later", message)',
        're.compile(r"never starts|allows")',
        'str(error).startswith("no such")',
        'end.get("message") in KNOWN',
        'hint.partition(": ")[0]',
        'def is_lost(message: str):\n    return "lost" in message',
    ],
)
def test_a_comparison_with_a_sentence_is_seen(line):
    assert [*decided_on(ast.walk(ast.parse(line)))]


@pytest.mark.parametrize(
    "line",
    [
        'event["code"] == Reason.LAUNCHER_ENDED',
        '"message" in entry',
        'message.get("origin") == "peer"',
        "message is None",
    ],
)
def test_a_comparison_with_a_code_or_of_keys_is_fine(line):
    assert [*decided_on(ast.walk(ast.parse(line)))] == []


def decided_on(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Comparisons, searches and splits of a sentence."""
    for node in nodes:
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            is_test = any(isinstance(kind, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for kind in node.ops)
            if is_test and any(_is_sentence(one) or _is_for_people(one) for one in operands):
                yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            value = node.func.value
            is_pattern = node.func.attr in ("search", "match", "fullmatch", "sub", "findall", "finditer")
            texts = [value, *(node.args if is_pattern else ())]
            if any(map(_is_for_people, texts)) or any(map(_is_sentence, [value, *node.args])):
                yield node


def _is_sentence(node: ast.expr) -> bool:
    if isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    else:
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return bool(TWO_WORDS.search(text))


def _is_for_people(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return any(_is_for_people(one) or ast.unparse(one) == "error" for one in node.args)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "lower":
        return _is_for_people(node.func.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return any(ast.unparse(one).strip("'") in FOR_PEOPLE for one in node.args[:1])
    if isinstance(node, ast.BoolOp):
        return any(map(_is_for_people, node.values))
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in FOR_PEOPLE
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in FOR_PEOPLE
