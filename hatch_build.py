"""What the package says of itself where its own tree is not beside it: on an index, and in an installation."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)\n*")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")


def description(readme: str, repository: str) -> str:
    """The README with absolute links, or, as long as no address is known, with their words alone."""
    if not repository:
        return LINK.sub(r"\1", PICTURE.sub("", readme))
    with_pictures = PICTURE.sub(rf"![\1]({repository}/raw/HEAD/\2)\n\n", readme)
    return LINK.sub(rf"[\1]({repository}/blob/HEAD/\2)", with_pictures)


def urls(repository: str) -> dict[str, str]:
    pages = {"Documentation": "blob/HEAD/docs/index.md", "Issues": "issues", "Changelog": "blob/HEAD/CHANGELOG.md"}
    return {"Repository": repository} | {name: f"{repository}/{path}" for name, path in pages.items()}


class PackageMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository = self.config["repository"].rstrip("/")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(readme, repository)}
        if repository:
            metadata["urls"] = urls(repository)


def man_page(source: Path) -> str:
    """`man serried`: the help of each command, from click."""
    sys.path.insert(0, str(source))
    import click  # only to build

    import serried
    from serried.cli import serried as command

    def helps(
        command: click.Command, names: tuple[str, ...], parent: click.Context | None
    ) -> Iterator[tuple[str, str]]:
        context = click.Context(command, parent, names[-1], terminal_width=78, color=False)
        yield " ".join(names), command.get_help(context)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None and not inner.hidden:
                    yield from helps(inner, (*names, name), context)

    lines = [
        f'.TH SERRIED 1 "" "serried {serried.__version__}"',
        ".SH NAME",
        "serried \\- run PyTorch training on clusters",
    ]
    for title, text in helps(command, ("serried",), None):
        literal = text.replace("\\", "\\e").replace("-", "\\-")
        literal = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", literal)
        lines += [f'.SH "{title.upper()}"', ".nf", *(f"\\&{line}" for line in literal.splitlines()), ".fi"]
    return "\n".join(lines) + "\n"


class ManPage(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's names
        self._folder = tempfile.TemporaryDirectory()
        page = Path(self._folder.name, "serried.1")
        page.write_text(man_page(Path(self.root, "src")), encoding="utf-8")
        build_data["shared_data"][str(page)] = "share/man/man1/serried.1"
