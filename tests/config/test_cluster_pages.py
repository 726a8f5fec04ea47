"""The page of each shipped profile, and the page on all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import cluster_pages
from resolving import resolve
from serried.base.errors import UsageError
from serried.config import definitions
from serried.submission.plan import allocate
from tables import for_each

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "clusters" / "clusters.md").read_text(encoding="utf-8")


def test_there_is_a_page_for_each_profile_and_no_other():
    assert sorted(path.stem for path in (DOCS / "clusters" / "known").glob("*.md")) == sorted(cluster_pages.names())
    assert cluster_pages.update(PAGE) == PAGE, "run `make docs`"


@for_each("name", cluster_pages.names())
def test_each_page_is_what_the_profile_says(name: str):
    assert (DOCS / "clusters" / "known" / f"{name}.md").read_text(encoding="utf-8") == cluster_pages.page(name), (
        "run `make docs`"
    )


@pytest.mark.parametrize("name", cluster_pages.names())
def test_the_first_job_of_each_page_is_one_that_its_cluster_takes(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("SCRATCH", "/scratch/ada")  # without it, a note on a root under the home would come
    page = (DOCS / "clusters" / "known" / f"{name}.md").read_text(encoding="utf-8")
    text = next(block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "# serried.toml" in block)
    found = resolve(folder, text, cluster=name)
    asked = allocate(found.experiment.resources, found.cluster)
    assert (asked.nodes, asked.ranks, asked.time_seconds, found.notes) == (1, asked.gpus, 1800, ())


def test_what_the_page_on_clusters_shows_as_files_can_be_read():
    files = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    read = [tomllib.loads(text) for text in files]
    for table in read:
        assert list(definitions.check(table if "experiments" in table else {"clusters": {"oak": table}}))
    assert len(read) == 2


def test_the_refusal_on_the_page_is_the_one_that_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("USER", "ada")
    found = resolve(folder, "", command=("a",), cluster="satori", resources__time="24h")
    with pytest.raises(UsageError) as caught:
        allocate(found.experiment.resources, found.cluster)
    hint = (caught.value.hint or "").replace("\n", "\n          ")
    assert f"    error: {caught.value.message}\n\n    hint: {hint}\n" in PAGE
