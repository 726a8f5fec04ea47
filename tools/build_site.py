"""Build the site from docs/: `python tools/build_site.py build/site`.

Sphinx builds a copy of the pages, all in one folder, with pages that are made from the code: each command, and the
Python API. The sections of docs/index.md are the navigation. A warning is an error.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext import autodoc

import serried
import serried.base.errors
import serried.train
from serried import cli
from serried.cli import docs

ROOT = Path(__file__).resolve().parents[1]
LOOKS = Path(__file__).resolve().with_name("site")
LINK = re.compile(r"(!?)\[((?:`[^`]*`|[^\]`])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"(?ms)(^ *```.*?^ *```$)")
LITERAL = re.compile(r"(`[^`]*`)")
MADE_FROM_CODE = ("commands", "python-names")
"""Pages in the section of docs/index.md that has the configuration."""

CONFIGURATION: dict[str, Any] = {
    "project": "Serried",
    "author": "The Serried developers",
    "extensions": ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "autodoc_mock_imports": ["torch"],
    "autodoc_member_order": "bysource",
    "default_role": "literal",
    "highlight_language": "none",
    "myst_enable_extensions": ["deflist"],
    "myst_heading_anchors": 4,
    "smartquotes": False,
    "html_additional_pages": {"search": "search.html"},
    "html_copy_source": False,
    "html_css_files": ["site.css"],
    "html_show_copyright": False,
    "html_show_sourcelink": False,
    "html_static_path": [str(LOOKS)],
    "html_theme": "furo",
    "html_title": f"Serried {serried.__version__}",
    "html_use_index": False,
    "templates_path": [str(LOOKS)],
}


def stage(folder: Path, repository: str) -> None:
    """Write all pages and pictures into `folder`, without folders, so that an address stays when a page moves."""
    known = docs.pages(Path(serried.__file__).parent)
    root = known["index"].parent
    for path in root.rglob("*"):
        if path.suffix == ".md":
            (folder / path.name).write_text(_with_links(path, root, repository), encoding="utf-8")
        elif path.is_file():
            shutil.copy(path, folder)
    sections = docs.contents(known)
    next(names for names in sections.values() if "configuration" in names).extend(MADE_FROM_CODE)
    labels = {link[3]: link[2] for link in LINK.finditer((folder / "index.md").read_text(encoding="utf-8"))}
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        for caption, names in sections.items():
            entries = [f"{labels[f'{name}.md']} <{name}>" if f"{name}.md" in labels else name for name in names]
            index.write("\n".join(("", "```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", "")))
    pages = dict(_commands()) | {"python-names": "\n".join(_python())}
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def _with_links(page: Path, root: Path, repository: str) -> str:
    """A page whose links lead to pages beside it, or to the repository, or, without its address, are plain text."""

    def renewed(link: re.Match[str]) -> str:
        picture, text, target, anchor = link.groups(default="")
        path = (page.parent / target).resolve()
        if path.is_relative_to(root.resolve()):
            return f"{picture}[{text}]({path.name}{anchor})"
        place = path.relative_to(ROOT).as_posix()
        return f"[{text}]({repository}/blob/HEAD/{place}{anchor})" if repository else text

    parts = FENCED.split(page.read_text(encoding="utf-8"))
    return "".join(part if at % 2 else LINK.sub(renewed, part) for at, part in enumerate(parts))


def _commands() -> Iterator[tuple[str, str]]:
    """The list of commands, and the page of each by its name."""
    top = click.Context(cli.serried, info_name="serried")
    lines = ["# Commands", "", "What `serried COMMAND --help` prints, for each command.", ""]
    for title, verbs in cli.GROUPS.items():
        lines += [f"## {title}", "", "| command | purpose |", "|---|---|"]
        lines += [f"| [`serried {verb}`](command-{verb}.md) | {_escaped(words)} |" for verb, words in verbs.items()]
        lines += [""]
    yield "commands", "\n".join(lines)
    for verb in cli.VERBS:
        if command := cli.serried.get_command(top, verb):
            text = "\n".join(_command(command, verb, top))
            yield f"command-{verb}", f"---\norphan: true\n---\n{text}\n\n[All commands](commands.md)\n"


def _command(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * context.command_path.count(' ')} serried {context.command_path.partition(' ')[2]}"
    for paragraph in inspect.cleandoc(f"{command.help}\n\n{command.epilog or ''}").split("\n\n"):
        kept = paragraph.startswith("\b\n")
        yield from ("", textwrap.indent(paragraph[2:], "    ") if kept else _escaped(paragraph))
    usage = command.collect_usage_pieces(context)
    yield from ("", "    " + " ".join(["usage:", context.command_path, *usage]))
    shown = Options()
    command.format_options(context, shown)
    yield from shown.lines
    for word, inner in getattr(command, "commands", {}).items():
        yield from ("", *_command(inner, word, context))


class Options(click.HelpFormatter):
    """Takes the options that a command would print, as a list of definitions."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def write_heading(self, heading: str) -> None:
        self.lines += ["", f"**{heading}**"]

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:  # noqa: ARG002
        for names, text in rows:
            self.lines += ["", f"`` {names} ``", f": {_escaped(text) or '-'}"]


def _escaped(text: str) -> str:
    """Text for people as Markdown. What is in backticks stays."""
    parts = LITERAL.split(text)
    return "".join(part if at % 2 else re.sub(r"([\\*_<\[\]#{|])", r"\\\1", part) for at, part in enumerate(parts))


def _python() -> Iterator[str]:
    """The public names of the library."""
    yield "# Names in Python"
    for module in (serried, serried.train):
        names = [name for name in module.__all__ if not _is_plain_error(getattr(module, name))]
        names.sort(key=lambda name: isinstance(getattr(module, name), type))
        yield from ("", f"## {module.__name__}", "", inspect.getdoc(module) or "", "", "```{eval-rst}")
        yield from (line for name in names for line in _autodoc(module, name))
        yield "```"
    tree = re.search(r"(?m)(^    .*\n)+", inspect.getdoc(serried.base.errors) or "")
    yield from ("", "## Errors", "", tree[0] if tree else "")


def _is_plain_error(value: object) -> bool:
    """Whether it is an error that the tree of errors describes."""
    return isinstance(value, type) and issubclass(value, serried.SerriedError) and not value.__dict__.get("__doc__")


def _autodoc(module: ModuleType, name: str) -> Iterator[str]:
    kind = "autoclass" if isinstance(getattr(module, name), type) else "autofunction"
    yield f".. {kind}:: {module.__name__}.{name}"
    yield from (("   :members:", "   :undoc-members:") if kind == "autoclass" else ())
    yield ""


def _searched(pages: dict[str, nodes.document], last: set[str]) -> str:
    """The texts that search.js reads: a script, because a page that is opened from a file may read no data."""
    texts = [
        {"name": name, "last": int(name in last), "sections": list(map(_section, page.findall(nodes.section)))}
        for name, page in sorted(pages.items())
        if name != "index"
    ]
    return f"const PAGES = {json.dumps(texts, ensure_ascii=False)};\n"


def _section(section: nodes.section) -> dict[str, str]:
    title, *others = section.children
    texts = [
        re.sub(r"<[^>]*>", " ", part.astext()) if isinstance(part, nodes.raw) else part.astext()
        for part in others
        if not isinstance(part, nodes.section)
    ]
    id_ = "" if isinstance(section.parent, nodes.document) else section["ids"][0]
    return {"id": id_, "title": title.astext(), "text": " ".join(" ".join(texts).split())}


def _without_constructor(
    _app: Sphinx, what: str, _name: str, _value: object, _options: object, signature: str | None, _returned: object
) -> tuple[str, None] | None:
    """Users create none of the classes themselves."""
    return ("", None) if signature and what in ("class", "exception") else None


def build(target: Path) -> int:
    """Build the site. The status is 1 after a warning."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    repository = settings["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"].rstrip("/")
    with tempfile.TemporaryDirectory() as folder:
        pages, trees = Path(folder, "pages"), Path(folder, "trees")
        pages.mkdir()
        with autodoc.mock(CONFIGURATION["autodoc_mock_imports"]):
            stage(pages, repository)
        shutil.rmtree(target, ignore_errors=True)
        site = Sphinx(pages, None, target, trees, "html", confoverrides=CONFIGURATION, status=None, warningiserror=True)
        vars(site.builder)["search"] = False  # search.html has its own, which also works from files and finds sections
        found: dict[str, nodes.document] = {}
        site.connect("autodoc-process-signature", _without_constructor)
        site.connect("doctree-resolved", lambda _, page, name: found.update({name: page}))
        site.build()
        last = set(docs.contents(docs.pages(Path(serried.__file__).parent))[docs.FOR_DEVELOPERS])
        (target / "_static" / "sections.js").write_text(_searched(found, last), encoding="utf-8")
    return int(site.statuscode)


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
