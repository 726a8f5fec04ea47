"""What is published: one version, one address, and a description that reads well where the tree is not beside it."""

import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import serried
from serried.cli import VERBS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RELATIVE = re.compile(r"\]\((?!https://)")


@pytest.fixture
def hook(monkeypatch):
    """hatch_build.py, without the hatchling that builds with it."""
    plugins = SimpleNamespace(MetadataHookInterface=object, BuildHookInterface=list)
    for part in ("metadata.plugin", "builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, f"hatchling.{part}.interface", plugins)
    return SimpleNamespace(**runpy.run_path(str(ROOT / "hatch_build.py")))


def test_the_recipe_and_the_changelog_agree_with_the_package():
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == serried.__version__
    spaced = [re.sub(r"(?=[<>=])", " ", text, count=1) for text in PROJECT["dependencies"]]
    assert recipe["requirements"]["run"] == ["python >=${{ python_min }}", *spaced]
    assert f">={recipe['context']['python_min']}" == PROJECT["requires-python"]
    assert f"\n## {serried.__version__}, " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("repository", ["", "https://git.example.org/ada/serried"])
def test_the_description_has_no_relative_link(hook, repository):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert RELATIVE.search(readme)
    text = hook.description(readme, repository)
    assert not RELATIVE.search(text)
    assert ("/watch.svg)" in text, f"]({repository}/blob/HEAD/docs/index.md)" in text) == (bool(repository),) * 2


def test_an_address_gives_the_urls_and_none_gives_none(hook):
    address = "https://git.example.org/ada/serried"
    for repository, names in (("", []), (f"{address}/", ["Repository", "Documentation", "Issues", "Changelog"])):
        metadata = {}
        hook.PackageMetadata.update(SimpleNamespace(root=ROOT, config={"repository": repository}), metadata)
        assert list(metadata.get("urls", {})) == names
        assert all(re.match(rf"{address}(/\w|$)", url) for url in metadata.get("urls", {}).values())


def test_the_manual_page_has_the_help_of_each_command_in_plain_characters(hook):
    page = hook.man_page(ROOT / "src")
    assert {f'.SH "SERRIED {name.upper()}"' for name in VERBS} <= set(page.splitlines())
    assert page.isascii()
