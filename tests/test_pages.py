"""The documentation names every verb, exit code, variable and test, and its links resolve."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from house import HOUSE, MODULES, ROOT, holds_for, name_of, room_of, tree_of
from serried.base import errors
from serried.cli import MODULE_OF, VERBS
from serried.schema import names
from tables import for_each


@for_each("verb", VERBS)
def test_every_verb_has_a_module_and_a_line_in_the_docs(verb: str):
    assert (HOUSE / "cli" / f"{MODULE_OF.get(verb, verb)}.py").is_file()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"serried {verb}" in page.read_text(encoding="utf-8") for page in pages)


def exit_codes() -> set[int]:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    return {0, 130} | {kind.exit_code for kind in kinds if issubclass(kind, errors.SerriedError)}


@for_each("code", sorted(exit_codes()))
def test_every_exit_code_is_documented(code: int):
    assert f"\n| {code} |" in (ROOT / "docs" / "reference" / "states.md").read_text(encoding="utf-8")


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
each_page = holds_for(PAGES)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


@each_page
def test_every_link_in_the_docs_leads_somewhere(page: Path):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Those of its headings, as GitHub names them."""
    headings = re.findall(r"(?m)^#+ (.*)$", without_code(page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_code(text: str) -> str:
    return re.sub(r"(?ms)^ *```.*?^ *```$", "", text)


@each_page
def test_every_anchor_of_a_link_is_a_heading(page: Path):
    links = [(page.parent / file if file else page, name) for file, name in ANCHOR.findall(page.read_text("utf-8"))]
    assert [(file.name, name) for file, name in links if file.suffix == ".md" and name not in anchors(file)] == []


def test_every_page_leads_back_to_the_index():
    pages = [page for page in PAGES if "docs" in page.relative_to(ROOT).parts and page.name != "index.md"]
    assert [page.name for page in pages if "index.md)" not in page.read_text(encoding="utf-8")] == []


def test_prose_wraps_at_120_columns():
    """Not a line of one long word, an indented line, a row of a table, or the target of a link."""
    long = {
        page.name: [line for line in without_code(page.read_text(encoding="utf-8")).splitlines() if is_long(line)]
        for page in PAGES
        if "examples" not in page.relative_to(ROOT).parts
    }
    assert {name: lines for name, lines in long.items() if lines} == {}


def is_long(line: str) -> bool:
    line = re.sub(r"^- [A-Z]\d+: |\]\([^)]*\)", "", line)  # a promise and its test, the target of a link
    words = line.split()
    return len(line) > 120 and not line.startswith(("|", "    ")) and len(words) > 1


TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def named_tests(page: Path) -> list[tuple[Path, str]]:
    return [(ROOT / file, test) for file, test in TEST.findall(page.read_text(encoding="utf-8"))]


@each_page
def test_every_test_that_a_page_names_is_there(page: Path):
    named = named_tests(page)
    assert [test for file, test in named if not file.exists() or f"def {test}(" not in file.read_text("utf-8")] == []


@for_each("page", ["docs/dev/guarantees.md", "docs/dev/pitfalls.md"])
def test_what_is_promised_names_its_tests(page: str):
    assert len(named_tests(ROOT / page)) > 10


PROMISE = re.compile(r"(?m)^\| ([A-Z]\d+) \| ")
PROOF = re.compile(r"(?m)^- ([A-Z]\d+): `tests/")


@for_each("page", ["guarantees", "pitfalls"])
def test_each_promise_has_tests_in_the_list_at_the_end_of_its_page(page: str):
    table, proofs = (ROOT / "docs" / "dev" / f"{page}.md").read_text(encoding="utf-8").split("\n## Tests\n")
    assert PROMISE.findall(table) == PROOF.findall(proofs)
    assert len(set(PROMISE.findall(table))) == len(PROMISE.findall(table)) > 50


def test_users_meet_at_most_50_pages_and_50_400_words_without_paths_of_tests():
    texts = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")}
    texts = {name: text for name, text in texts.items() if not (ROOT / "docs" / "dev" / name).exists()}
    assert len(texts) <= 50
    assert sum(len(text.split()) for text in texts.values()) <= 50_400
    assert [name for name, text in texts.items() if "`tests/" in text] == []


@each_page
def test_no_page_is_lost(page: Path):
    if "docs" in page.parts:
        assert f"/{page.name})" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8") or page.name == "index.md"


READ_BY_SERRIED = re.compile(r"(?:SERRIED|XDG)_[A-Z_]+|NO_COLOR|FORCE_COLOR|CUDA_VISIBLE_DEVICES|P?SCRATCH")
OURS_ALONE = {
    "SERRIED_LAB",
    "SERRIED_LAB_NODE",
    "SERRIED_",
    "SERRIED_TABLE_KEY",
    "XDG_RUNTIME_DIR",
    "SERRIED_STOP_FILE",
    "SERRIED_LOG_SHARED",
    "SERRIED_SENT_SETTINGS",
}
"""Marks that a lab sets, prefixes, what is only passed on, and what ranks or the far end of a connection read."""


def test_every_variable_that_serried_reads_is_on_its_page():
    """Those of a job are not: `schema/names.py` has them, and the page's table of a rank."""
    read: set[str] = set()
    for path in MODULES:
        if name_of(path) != "schema/names.py" and room_of(path) not in {"agent", "train"}:
            strings = (node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant))
            read |= {string for string in strings if isinstance(string, str) and READ_BY_SERRIED.fullmatch(string)}
    page = (ROOT / "docs" / "reference" / "variables.md").read_text(encoding="utf-8")
    assert {name for name in read - OURS_ALONE if f"`{name}`" not in page and f"`{name}=" not in page} == set()
    assert {"SERRIED_LOCAL_SLOTS", "SERRIED_CLUSTER", "XDG_STATE_HOME"} <= read


@for_each("variable", sorted(names.JOB_VARIABLES))
def test_every_variable_of_a_rank_is_on_its_page_and_no_other(variable: str):
    page = (ROOT / "docs" / "reference" / "variables.md").read_text(encoding="utf-8")
    given = {names.RUN_ID, names.RUN_DIR, names.ATTEMPT, names.TASK, names.DATA_DIR, names.CHECKPOINT_DIR}
    given |= {names.RESULTS_DIR, names.DEADLINE, names.STOP_FILE, names.CONFIG, names.RESUME_FROM, names.SMOKE}
    given |= {names.AFTER, names.TRACKER, names.PARALLEL, names.ROUND}
    assert (f"`{variable}`" in page) == (variable in given)
