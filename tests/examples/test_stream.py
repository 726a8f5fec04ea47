"""Data from tar files, read in three ways."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "stream"
EPOCH = re.compile(r"epoch (\d+): (\d+) records, (\d\.\d+) of them")

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(
        EXAMPLE, tmp_path_factory.mktemp("stream") / "project", ignore=shutil.ignore_patterns("data", "__*")
    )


@pytest.mark.parametrize(
    ("reader", "records"),
    [
        ("own", 1798),  # 1,797, and one that comes twice so that both ranks have as many
        ("webdataset", 1792),  # 28 batches of 32 on both ranks
        ("torchdata", 1796),  # without the odd one
    ],
)
def test_two_ranks_learn_from_files_by(project: Path, tmp_path: Path, train, reader: str, records: int):
    if reader != "own":
        pytest.importorskip(reader, reason=f"needs {reader}: pip install {reader}")
    stop = tmp_path / "stop"
    stop.write_text("limit")
    words = (project / "train.py", "--reader", reader, "--epochs", "2")
    stopped = train(*words, SERRIED_CHECKPOINT_DIR=tmp_path, SERRIED_STOP_FILE=stop)
    assert stopped.statuses == [85, 85], stopped.output

    ended = train(*words, SERRIED_CHECKPOINT_DIR=tmp_path)
    assert ended.succeeded()
    (_, rest, _), (_, whole, share) = EPOCH.findall(ended.output)
    assert (int(rest), int(whole)) == (records - 64, records)  # on from the second step, and then all
    assert float(share) > 0.8
