from __future__ import annotations

from pathlib import Path

import pytest

from serried.importing import find_script


@pytest.mark.parametrize(
    ("files", "script"),
    [
        (["train.py", "main.py"], "train.py"),
        (["main.py", "src/train.py"], "main.py"),
        (["src/train.py", "helpers.py"], "src/train.py"),
        ([".venv/train.py", "tests/train.py"], None),
        (["a.py", "b.py"], None),
        (["my experiment.py", "setup.py", "test_it.py"], "my experiment.py"),
        ([], None),
    ],
)
def test_the_script_that_trains_is_found(tmp_path: Path, files: list[str], script: str | None):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_script(tmp_path) == script


def test_the_one_program_among_modules_is_found(tmp_path: Path):
    (tmp_path / "net.py").write_text("x = 1")
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "fit.py").write_text('if __name__ == "__main__":\n    pass\n')
    assert find_script(tmp_path) == "fit.py"
