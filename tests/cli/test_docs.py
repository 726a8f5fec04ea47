"""`serried docs`: pages for users who have no clone."""

import re
import tomllib

import pytest

from house import HOUSE, ROOT
from serried.cli import docs


def test_a_page_is_printed_by_its_name_or_its_path(serried):
    page = (ROOT / "docs" / "guides" / "sweeps.md").read_text(encoding="utf-8")
    for name in ("sweeps", "sweeps.md", "docs/guides/sweeps.md"):
        done = serried("docs", name)
        assert (done.code, done.out, done.err) == (0, page, "")


def test_pages_are_listed_and_a_mistyped_one_is_named(serried):
    lines = serried("docs").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == sorted(docs.pages(HOUSE))
    done = serried("docs", "sweesp")
    assert (done.code, done.err) == (2, "error: no page is called `sweesp`\n\nhint: did you mean `sweeps`?\n")


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
