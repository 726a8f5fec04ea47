"""The table `data`: what is staged from where to where, and what is wrong refused with its line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from resolving import BARE, refusal, resolve
from serried.base.errors import UsageError
from serried.schema.plan import Data, Plan, Staged, Sync
from serried.submission.plan import make_plan

ROOT = '[defaults.data]\nroot = "/pool"\nstage = '


def planned(folder: Path, text: str, **options: Any) -> Plan:
    resolved = resolve(folder, text, **{"command": BARE, "cluster": "local", **options})
    return make_plan(resolved, run_id="k3f9q2", created="2026-11-18T11:06:40Z")


@pytest.mark.parametrize(
    ("said", "staged"),
    [
        ('"sets/a"', [("/pool/sets/a", "sets/a", "")]),
        ('["./sets//a/", "b"]', [("/pool/sets/a", "sets/a", ""), ("/pool/b", "b", "")]),
        ('["/abs/x"]', [("/abs/x", "x", "")]),
        ('["$DATA_SETS/y", "~/z"]', [("/sets of all/y", "y", ""), ("{home}/z", "z", "")]),
        ('[{from = "/abs/x", to = "sets/x"}]', [("/abs/x", "sets/x", "")]),
        ('[{from = "a", to = "b"}]', [("/pool/a", "b", "")]),
        ('["sets/a.tar"]', [("/pool/sets/a.tar", "sets/a", "tar")]),
        (
            '["a.tar.gz", "b.TGZ", "c.tar.zst", "d.zip", "e.sqsh"]',
            [
                ("/pool/a.tar.gz", "a", "tar.gz"),
                ("/pool/b.TGZ", "b", "tar.gz"),
                ("/pool/c.tar.zst", "c", "tar.zst"),
                ("/pool/d.zip", "d", "zip"),
                ("/pool/e.sqsh", "e", "squashfs"),
            ],
        ),
        ('[{from = "a.tar", unpack = false}]', [("/pool/a.tar", "a.tar", "")]),
        ('[{from = "a.tar", to = "x.tar"}]', [("/pool/a.tar", "x.tar", "tar")]),
        ('[".tar", "a.gz"]', [("/pool/.tar", ".tar", ""), ("/pool/a.gz", "a.gz", "")]),
        (r"""["it's \"$(id)\"\n{data}"]""", [('/pool/it\'s "$(id)"\n{data}', 'it\'s "$(id)"\n{data}', "")]),
    ],
)
def test_what_is_staged_keeps_its_place_below_the_root(folder: Path, monkeypatch, said: str, staged: list[Any]):
    monkeypatch.setenv("DATA_SETS", "/sets of all")
    expected = [Staged(source.replace("{home}", os.environ["HOME"]), *rest) for source, *rest in staged]
    assert planned(folder, ROOT + said).data == Data(tuple(expected))


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        ('["../a"]', "must be a path that stays inside, not `../a`", "name a path elsewhere with `from`"),
        ('["a/../.."]', "must be a path that stays inside, not `a/../..`", "name a path elsewhere with `from`"),
        ('["."]', "must be a path that stays inside, not `.`", "name a path elsewhere with `from`"),
        (
            '[{from = "a", to = "/b"}]',
            "must be a path that stays inside, not `/b`",
            "name a path elsewhere with `from`",
        ),
        ('[{from = "a", to = "../b"}]', "must be a path that stays inside, not `../b`", "name a path else"),
        ('[""]', "must not hold an empty path", ""),
        ("[3]", "must be paths in quotes, not `3`", ""),
        ('[{to = "x"}]', "has a table without `from`", "write `{from ="),
        ('[{from = "x", into = "y"}]', "knows `from`, `to` and `unpack`, not `into`", ""),
        ('[{from = "x", unpack = "maybe"}]', "must be true or false, not `maybe`", ""),
        ('["$NOWHERE/x"]', "names `$NOWHERE`, which is not set here", ""),
    ],
)
def test_a_path_that_leads_out_or_is_none_is_refused_with_its_line(folder: Path, said: str, message: str, hint: str):
    told, then = refusal(folder, ROOT + said, command=BARE)
    assert told.replace("defaults.", "") == f"serried.toml:3: `data.stage` {message}"
    assert (then or "").startswith(hint)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('["a", "a"]', "`/pool/a` is staged twice"),
        ('["a", "./a/"]', "`/pool/a` is staged twice"),
        ('["a", "/elsewhere/a"]', "`/elsewhere/a` would appear in the place of `/pool/a`, as `a`"),
        ('["a/b", "a"]', "`/pool/a/b` would appear in the place of `/pool/a`, as `a/b`"),
        ('["a.tar", "a"]', "`/pool/a` would appear in the place of `/pool/a.tar`, as `a`"),
        ('[{from = "a", unpack = true}]', "`a` is not an archive that Serried can unpack"),
    ],
)
def test_two_that_would_be_in_the_same_place_are_refused(folder: Path, said: str, message: str):
    with pytest.raises(UsageError) as caught:
        planned(folder, ROOT + said)
    assert caught.value.message == f"serried.toml:3: `data.stage`: {message}"


def test_data_begins_below_scratch_and_at_home_in_the_project(folder: Path, monkeypatch):
    monkeypatch.setenv("SCRATCH", "/scratch/ada")
    text = '[project]\nname = "digits"\n[defaults.data]\nstage = "a"\n[clusters.pine]\nscheduler = "slurm"\n'
    assert planned(folder, text, cluster="pine").data == Data((Staged("/scratch/ada/digits/a", "a"),))
    assert planned(folder, text).data == Data((Staged(f"{folder}/data/a", "a"),))
    monkeypatch.delenv("SCRATCH")
    assert planned(folder, text, cluster="pine").data == Data((Staged(f"{folder}/data/a", "a"),))
    there = text + 'scratch = "$HOME/fast"\n'
    assert planned(folder, there, cluster="pine").data == Data((Staged(f"{os.environ['HOME']}/fast/digits/a", "a"),))


def test_the_rest_of_it_and_what_a_cluster_says_of_its_disks(folder: Path):
    text = """
[defaults.data]
require = ["/datasets/x", "here"]
results = "*.csv"
results_every = "90s"
verify = "hashes"
[defaults.checkpoint]
watch = ["logs/*.pt"]
bandwidth = "100M"
[clusters.local]
local_disk = "/ssd"
local_disk_size = "2G"
local_disk_files = 1000
data_cache = "1G"
data_transfer = "each"
"""
    found = planned(folder, text)
    assert found.data == Data((), ("/datasets/x", f"{folder}/here"), ("*.csv",), 90, "hashes")
    assert found.checkpoint == Sync(("logs/*.pt",), 30, 3, 100 << 20)
    site = found.site
    assert (site.local_disk, site.local_disk_size_bytes, site.local_disk_files) == ("/ssd", 2 << 30, 1000)
    assert (site.data_cache_bytes, site.data_transfer) == (1 << 30, "each")


def test_a_disk_is_no_memory_and_nothing_stays_where_one_says_none(folder: Path):
    assert planned(folder, "[clusters.local]\ndata_cache = 'none'").site.data_cache_bytes == 0
    for key, said in (("data_cache", '"all"'), ("data_cache", "5"), ("local_disk_size", "0")):
        with pytest.raises(UsageError) as caught:
            planned(folder, f"[clusters.local]\n{key} = {said}")
        wrong = said.strip('"')
        assert f"`clusters.local.{key}` must be an amount such as `200G` or `512M`, not `{wrong}`" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "said", "wrong"),
    [
        ("data.results", '["*.csv", "/abs/*.csv"]', "/abs/*.csv"),
        ("data.results", '"../*.csv"', "../*.csv"),
        ("data.results", '"{checkpoints}/*.csv"', "{checkpoints}/*.csv"),
        ("data.results", '"./"', "./"),
        ("checkpoint.watch", '"$HOME/*.pt"', "$HOME/*.pt"),
        ("checkpoint.watch", '"{checkpoints}//x"', "{checkpoints}//x"),
        ("checkpoint.watch", '"$SLURM_TMPDIR/"', "$SLURM_TMPDIR/"),
    ],
)
def test_a_pattern_that_leads_elsewhere_is_refused(folder: Path, key: str, said: str, wrong: str):
    table, name = key.split(".")
    text = f"[defaults.{table}]\n{name} = {said}\n"
    message, _ = refusal(folder, text, command=BARE)
    assert message == f"serried.toml:2: `defaults.{key}` must be patterns of relative paths, not `{wrong}`"


def test_patterns_may_name_the_folder_that_they_are_below(folder: Path):
    text = """
[defaults.data]
results = ["{results}/a/*.csv", "b"]
[defaults.checkpoint]
watch = ["{checkpoints}/*.pt", "${SLURM_TMPDIR}/x/*", "logs/*.pt"]
"""
    found = planned(folder, text)
    assert found.data == Data((), (), ("a/*.csv", "b"))
    assert found.checkpoint == Sync(("{checkpoints}/*.pt", "${SLURM_TMPDIR}/x/*", "logs/*.pt"))
