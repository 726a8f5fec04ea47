"""`serried docs`: pages for users who have no clone."""

import os
import re
import subprocess
import sys
import tomllib

import pytest

from house import HOUSE, ROOT
from serried.cli import docs
from serried.views import console


def test_a_page_is_printed_by_its_name_or_its_path(serried):
    page = (ROOT / "docs" / "guides" / "sweeps.md").read_text(encoding="utf-8")
    for name in ("sweeps", "sweeps.md", "docs/guides/sweeps.md"):
        done = serried("docs", name)
        assert (done.code, done.out, done.err) == (0, page, "")


INDEX = "# Pages\n\n[Data](guides/data.md)\n\n## Start\n\n[Install](start/install.md)\n"
DATA = """# Copy data

Each node has a copy.

## Which data

- If the [disk](../start/install.md) is full, the job ends.

### Archives

    tar cf photos.tar photos

## Results

They come back.
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """Four pages in place of the real ones."""
    index = f"{INDEX}\n## Guides\n\n[Data](guides/data.md), [Design](dev/design.md)"
    texts = {"index": index, "start/install": "# Install it\n\nIt needs a disk.\n", "guides/data": DATA}
    for name, text in {**texts, "dev/design": "# Parts\n"}.items():
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / f"{name}.md").write_text(text)
    known = docs.pages(tmp_path / "src" / "serried")
    monkeypatch.setattr(docs, "pages", lambda _: known)


@pytest.mark.usefixtures("planted")
def test_pages_are_listed_as_in_the_index_and_those_for_developers_on_request(serried):
    listed = "Start\n  install  Install it\nGuides\n  data     Copy data\n"
    assert serried("docs").out == listed
    assert serried("docs", "--all").out == f"{listed}For developers\n  design   Parts\n"


def test_every_page_for_users_is_listed_in_80_columns(serried):
    lines = serried("docs").out.splitlines()
    users = {name for name, path in docs.pages(HOUSE).items() if path.parent.name != "dev"} - {"index"}
    assert {line.split()[0] for line in lines if line.startswith("  ")} == users
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.usefixtures("planted")
def test_a_pipe_gets_the_markdown_of_a_page_or_a_section_and_a_terminal_text(serried, terminal):
    section = DATA[DATA.index("## Which") : DATA.index("\n## Results")]
    assert (serried("docs", "Data").out, serried("docs", "data#which-data").out) == (DATA, section)
    terminal()
    assert serried("docs", "data#which-data").out == section.replace("[disk](../start/install.md)", "disk")


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("# Title\nText in\ntwo [lines](a.md).<!-- no -->", "# Title\n\nText in two lines."),
        (f"1. {'word ' * 16}\n   end\n2. two", f"1. {('word ' * 15).strip()}\n   word end\n2. two"),
        ("<details><summary>A case</summary>\n\n**Text** ![](a.png)\n\n</details>", "#### A case\n\nText"),
        ("| a | b |\n|---|---|\n| `x\\|y` | z |", "a      b\n`x|y`  z"),
        (f"| a | b | c |\n|-|-|-|\n| {'x' * 40} | {'y' * 40} | 3 |", f"- {'x' * 40}; b:\n  {'y' * 40}; c: 3"),
        ("    code:\n\n    # not a heading", "    code:\n\n    # not a heading"),
    ],
)
def test_markdown_is_text_on_a_terminal(terminal, markdown, shown):
    terminal()
    assert docs.readable(markdown) == shown


@pytest.mark.usefixtures("planted")
def test_a_search_shows_the_sections_with_most_of_the_words_the_best_first(serried):
    best = "data#which-data\n    If the disk is full, the job ends.\n"
    assert serried("docs", "--search", "full", "disks").out == best == serried("docs", "full", "disk", "zebra").out
    assert serried("docs", "--search", "full disks").out == best
    assert serried("docs", "--search", "disk").out == f"{best}install#install-it\n    It needs a disk.\n"


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("daat", "no page is called `daat`", "did you mean `serried docs data`?"),
        ("data#result", "the page `data` has no section `result`", "did you mean `results`?"),
        ("--search zebra", "no page has `zebra`", "`serried docs` lists the pages"),
        ("--search", "no page has ``", "`serried docs` lists the pages"),
        ("--open data", "the pages have no address yet", "serried docs data"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(serried, words, error, hint):
    assert serried("docs", *words.split()).err == f"error: {error}\n\nhint: {hint}\n"


def test_a_page_opens_at_the_address_of_the_site_and_hints_name_it(serried, monkeypatch):
    opened = []
    monkeypatch.setattr("click.launch", opened.append)
    for module in (docs, console):
        monkeypatch.setattr(module, "SITE", "https://docs.example.org")
    console.note("see `serried docs data`")
    done = serried("docs", "--open", "data#archives")
    assert (done.out, opened) == (f"{opened[0]}\n", ["https://docs.example.org/data.html#archives"])
    assert done.err == "note: see `https://docs.example.org/data.html`\n"


def test_a_pager_shows_the_page_on_a_terminal(tmp_path):
    program = f"import pty; pty.spawn([{sys.executable!r}, '-m', 'serried', 'docs', 'data'])"
    environ = {**os.environ, "PAGER": f"tee {tmp_path}/shown", "TERM": "xterm", "NO_COLOR": "1"}
    subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, check=True)
    assert (tmp_path / "shown").read_text().startswith("# ")


@pytest.mark.parametrize("folder", ["lib/python3.11/site-packages/serried", "serried"])
def test_a_wheel_has_the_pages(tmp_path, folder):
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["shared-data"] == {"docs": docs.INSTALLED}
    page = tmp_path / docs.INSTALLED / "index.md"
    page.parent.mkdir(parents=True)
    page.touch()
    assert docs.pages(tmp_path / folder) == {"index": page}


def test_messages_name_pages_that_exist_and_no_file_that_a_wheel_lacks():
    pages = set(docs.pages(HOUSE))
    for path in HOUSE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"serried docs ([a-z][\w-]+)", text)) <= pages, path
        assert not re.search(r'^.*[^"]f?"[^"].*\bdocs/[\w/-]+\.md', text, re.MULTILINE), path
