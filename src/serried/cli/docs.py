"""`serried docs` and `completion`: the pages of the documentation, which a wheel has too, and completion scripts."""

from __future__ import annotations

import itertools
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from click.shell_completion import ShellComplete, get_completion_class

import serried
from serried.base import SITE
from serried.base.errors import SerriedError, UsageError, did_you_mean
from serried.cli import run_view
from serried.views import console
from serried.views.text import fit, width, wrapped


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    r"""Print the completion script for a shell.

    \b
    eval "$(serried completion bash)"                              in ~/.bashrc
    eval "$(serried completion zsh)"                               in ~/.zshrc
    serried completion fish > ~/.config/fish/completions/serried.fish
    """
    from serried.cli import serried

    completion = get_completion_class(shell) or ShellComplete  # the choice above leaves only shells that click knows
    console.out(completion(serried, {}, "serried", "_SERRIED_COMPLETE").source())


INSTALLED = "share/serried/docs"
"""Below an environment, or below the target of `pip install --target`."""
FOR_DEVELOPERS = "For developers"
_MARKS = re.compile(r"!\[[^\]]*\]\([^)\s]*\)|\[([^\]]*)\]\([^)\s]*\)|\*\*|\\(?=\|)|</?details>|</?summary>")
_CELLS = re.compile(r"\s*(?<!\\)\|\s*")
_FENCED = re.compile(r"(?ms)^( *)```.*?\n(.*?)^\1```$")
_MOST_RESULTS, _MOST_OF_A_PAGE = 10, 2


def pages(package: Path) -> dict[str, Path]:
    """The pages by name. `package` is the folder of an installation."""
    clone, *others = (package.parents[1] / "docs", *(above / INSTALLED for above in package.parents[:4]))
    folder = clone if (clone / "index.md").is_file() else next(filter(Path.is_dir, others), clone)
    return dict(sorted((path.stem, path) for path in folder.rglob("*.md")))


def contents(known: dict[str, Path]) -> dict[str, list[str]]:
    """The names of pages by the section of the index that links to them first, and last those for developers."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"(?m)^## ", known["index"].read_text(encoding="utf-8"))[1:]:
        for name in re.findall(r"\]\((?:\w+/)*([\w-]+)\.md", part):
            if name in known and not any(name in names for names in found.values()):
                title = FOR_DEVELOPERS if known[name].parent.name == "dev" else part.partition("\n")[0]
                found.setdefault(title, []).append(name)
    return {**found, FOR_DEVELOPERS: found.pop(FOR_DEVELOPERS, [])}


def sections_of(page: Path) -> list[tuple[str, str, str]]:
    """Title, anchor as GitHub makes it, and Markdown of the parts of a page, each from its heading to the next one."""
    text = _FENCED.sub(lambda code: textwrap.indent(code[2], "    "), page.read_text(encoding="utf-8"))
    parts = [(part.partition("\n")[0].lstrip("# "), part) for part in re.split(r"(?m)^(?=#+ )", text)[1:]]
    return [(title, re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"), part) for title, part in parts]


def section_of(page: Path, anchor: str) -> str:
    """The section with those below it, or without an anchor the page."""
    anchors, texts = [at for _, at, _ in sections_of(page)], [text for *_, text in sections_of(page)]
    if anchor and anchor not in anchors:
        hint = did_you_mean(anchor, anchors) or f"its sections: {', '.join(anchors[1:])}"
        raise UsageError(f"the page `{page.stem}` has no section `{anchor}`", hint=hint)
    first, *others = texts[anchors.index(anchor) if anchor else 0 :]
    marks = first.partition(" ")[0]
    return "".join([first, *itertools.takewhile(lambda text: text.startswith(f"{marks}#"), others)]).rstrip()


def results(known: dict[str, Path], names: Iterable[str], words: Sequence[str]) -> list[tuple[str, str]]:
    """The best sections of the pages with most of the words: `PAGE#SECTION`, and a line of it."""
    stems = [re.escape(word.rstrip("s")) for word in words]

    def count(*texts: str) -> int:
        return sum(bool(re.search(rf"(?i)(?<!\w){stem}", text)) for stem in stems for text in texts)

    found = []
    for name in names:
        sections, of_page = sections_of(known[name]), list[tuple[int, int, int, str, str]]()
        in_page = count("".join(text for *_, text in sections))
        for title, anchor, text in sections:
            line = max(filter(None, _plain(text).splitlines()[1:]), key=count, default=title).strip("|-# ")
            score = 2 * count(title) + count(name, sections[0][0], line) + 3 * count(text)
            often = sum(text.lower().count(word.lower()) for word in words)
            of_page += [(-in_page, -score, -often, f"{name}#{anchor}", line)] if count(text) else []
        found += sorted(of_page)[:_MOST_OF_A_PAGE]
    return [(place, line) for in_page, _, _, place, line in sorted(found) if in_page == min(found)[0]]


def readable(markdown: str) -> str:
    markdown = re.sub(r"\s*<details>\s*<summary>(.*?)</summary>", r"\n\n#### \1\n", markdown).replace("</details>", "")
    spaced = re.sub(r"(?m)^(#+ .*)$", r"\n\1\n", re.sub(r"(?s)<!--.*?-->", "", markdown))
    return "\n\n".join("\n".join(_lines_of(block)) for block in re.split(r"\n(?:\s*\n)+", spaced.strip("\n")))


def _lines_of(block: str) -> list[str]:
    if block.startswith("    "):
        return block.splitlines()
    if block.startswith("#"):
        return [console.style(_plain(block.lstrip("# ")), "head") if console.has_colour() else _plain(block)]
    if block.startswith("|"):
        head, _, *rows = [list(map(_plain, _CELLS.split(line)))[1:-1] for line in block.splitlines()]
        widths = [max(map(width, column)) for column in zip(*rows)]
        if sum(widths[:-1]) <= console.columns() // 2 or sum(widths) + 2 * len(head) <= console.columns():
            return console.table(head, rows, whole=True)
        labels = ["", *(f"{word}: " if len(head) > 2 else "" for word in head[1:])]
        named = [[label + cell for label, cell in zip(labels, row) if cell] for row in rows]
        block = "\n".join(f"- {'; '.join(cells)}" for cells in named)
    lines = []
    for item in re.split(r"\n(?= *(?:[-*]|\d+\.) )", block):
        _, lead, text = re.split(r"^( *(?:[-*] |\d+\. )?)", item, maxsplit=1)
        shown = wrapped(" ".join(_plain(text).split()), console.columns() - len(lead))
        lines += [f"{' ' * len(lead) if at else lead}{line}" for at, line in enumerate(shown)]
    return lines


def _plain(text: str) -> str:
    """Text without the marks of links, bold words and folded parts. Literals stay in backticks."""
    return _MARKS.sub(lambda mark: mark[1] or "", text)


_PAGE = run_view.Offered("PAGE", lambda: pages(Path(serried.__file__).parent))


@click.command()
@click.argument("words", metavar="[PAGE[#SECTION]]", nargs=-1, type=_PAGE)
@click.option("--search", is_flag=True, help="Search for the words that follow.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("--all", "everything", is_flag=True, help="Include the pages for developers of Serried.")
def command(*, words: tuple[str, ...], search: bool, opens: bool, everything: bool) -> None:
    r"""Print a page of the documentation, list the pages, or search them.

    \b
    serried docs                         the pages
    serried docs time-limits             one of them
    serried docs time-limits#chains      one of its sections
    serried docs --search disk full      sections with these words, the best first
    serried docs data > data.md          as Markdown

    On a terminal, `$PAGER` shows the page, by default `less`. Only `--open` needs a network.
    """
    known = pages(Path(serried.__file__).parent)
    listed = {title: names for title, names in contents(known).items() if everything or title != FOR_DEVELOPERS}
    if search or len(words) > 1:
        found = results(known, itertools.chain(*listed.values()), " ".join(words).split())
        if not found:
            raise SerriedError(f"no page has `{' '.join(words)}`", hint="`serried docs` lists the pages")
        for place, line in found[:_MOST_RESULTS]:
            console.out(f"{console.style(place, 'head')}\n    {fit(line, console.columns() - 4)}")
        return
    word, _, anchor = "".join(words).partition("#")
    name = Path(word or "index").name.removesuffix(".md").lower()
    if name not in known:
        hint = did_you_mean(name, known, command="serried docs") or f"serried docs --search {name}"
        raise UsageError(f"no page is called `{word}`", hint=hint)
    if opens:
        if not SITE:
            raise UsageError("the pages have no address yet", hint=f"serried docs {name}")
        click.launch(text := f"{SITE}/{name}.html#{anchor}".rstrip("#"))
    elif words:
        text = section_of(known[name], anchor) if anchor else known[name].read_text(encoding="utf-8").rstrip()
        text = readable(section_of(known[name], anchor)) if console.is_terminal() else text
    else:
        widest = max(map(len, itertools.chain(*listed.values())))
        text = "\n".join(
            "\n".join([title, *(f"  {name.ljust(widest)}  {sections_of(known[name])[0][0]}" for name in names)])
            for title, names in listed.items()
        )
    if console.is_terminal() and os.environ.get("PAGER") != "":
        os.environ.setdefault("LESS", "FRX")  # as git
        click.echo_via_pager(text)
    else:
        console.out(text)
