"""What the package says of itself where its own tree is not beside it: on an index, and in an installation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
