"""The source that ranks run."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from serried.agent.head import snapshot


def test_a_snapshot_is_unpacked_with_modes_of_the_umask_and_links_made_files(tmp_path):
    def entry(name, **facts):
        member = tarfile.TarInfo(name)
        for fact, value in facts.items():
            setattr(member, fact, value)
        return member

    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        tar.addfile(entry("src", type=tarfile.DIRTYPE, mode=0o777))
        tar.addfile(entry("src/run.sh", size=2, mode=0o755), io.BytesIO(b"hi"))
        tar.addfile(entry("src/same.sh", type=tarfile.LNKTYPE, linkname="src/run.sh", mode=0o644))
        tar.addfile(entry("there", type=tarfile.SYMTYPE, linkname="src/run.sh"))
    before = os.umask(0o077)
    try:
        snapshot.extract(tmp_path / "s.tar", tmp_path / "out", 1_795_000_000)
    finally:
        os.umask(before)

    out = tmp_path / "out"
    modes = {path.name: oct(path.lstat().st_mode & 0o777) for path in (out / "src", *(out / "src").iterdir())}
    assert modes == {"src": "0o700", "run.sh": "0o700", "same.sh": "0o600"}
    assert (out / "src/same.sh").read_text() == "hi"
    assert (out / "src/same.sh").stat().st_ino != (out / "src/run.sh").stat().st_ino
    assert (out / "there").readlink() == Path("src/run.sh")
    files = ("src/run.sh", "src/same.sh", "there")
    assert {(out / name).lstat().st_mtime_ns for name in files} == {1_795_000_000 * 10**9}
