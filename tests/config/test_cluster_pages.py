"""The page of known clusters, and the page on clusters."""

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

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "clusters" / "clusters.md").read_text(encoding="utf-8")
KNOWN = (DOCS / "clusters" / "known-clusters.md").read_text(encoding="utf-8")


def test_the_page_of_known_clusters_is_what_the_profiles_say():
    assert cluster_pages.update(KNOWN) == KNOWN, "run `make docs`"
    assert re.findall(r"(?m)^## (.+)$", KNOWN) == cluster_pages.names()
    with pytest.raises(ValueError, match="the page has no line"):
        cluster_pages.update("mine")


@pytest.mark.parametrize("name", cluster_pages.names())
def test_the_first_job_with_the_account_of_each_section_is_one_that_its_cluster_takes(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("SCRATCH", "/scratch/ada")  # without it, a note on a root under the home would come
    section = KNOWN.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    account = re.search(r"`(account = [^`]+)`", section)
    text = next(block for block in re.findall(r"```toml\n(.*?)```", KNOWN, re.DOTALL) if "# serried.toml" in block)
    if account:
        text = re.sub(r"(?m)^# account = .*$", account[1], text)
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
