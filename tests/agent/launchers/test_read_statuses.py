"""When a script reads the status of a call, it has handled the failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from serried.agent.launchers.interception import reads_status

SCRIPT = """\
srun a; code=$?
srun b
if [ $? -ne 0 ]; then echo no; fi
srun c \\
  --long | tee log

# what became of it
codes=(${PIPESTATUS[@]})
srun d
echo done
train() {
  srun e
}
train
status=$?
train
echo $status
"""


@pytest.mark.parametrize(
    ("lines", "reads"),
    [
        ([1], True),
        ([2], True),
        ([4], True),
        ([9], False),
        ([12, 14], True),
        ([12, 16], False),
        ([99], False),
        ([], False),
    ],
)
def test_a_status_that_is_read_is_handled(tmp_path: Path, lines: list[int], reads: bool):
    (tmp_path / "script").write_text(SCRIPT)
    assert reads_status(str(tmp_path / "script"), lines, "srun") is reads


@pytest.mark.parametrize(
    ("script", "reads"),
    [
        ("srun a & P=$!\nwait $P || echo no", True),
        ("srun a &\npids+=($!)\nfor p in ${pids[@]}; do wait $p; done", True),
        ("srun a &\nsrun b &\nwait", False),
        ("srun a && srun b\nwait $x", False),
        ("srun a >log 2>&1\nwait -n", False),
    ],
)
def test_the_status_of_a_background_call_is_that_of_its_wait(tmp_path: Path, script: str, reads: bool):
    (tmp_path / "script").write_text(script)
    assert reads_status(str(tmp_path / "script"), [1], "srun") is reads


def test_a_source_that_cannot_be_read_handles_nothing():
    assert not reads_status("/nowhere", [1], "srun")


@pytest.mark.parametrize(
    ("line", "reads"),
    [
        ("! srun a", True),
        ("X=1; ! Y=2 srun a | tee log", True),
        ("for i in 1; do ! $LAUNCHER a; done", True),
        ("! [ -e done ] && srun a", False),
        ("srun a ! srun", False),
        ("! srunner x; srun a", False),
    ],
)
def test_an_inverted_status_is_handled(tmp_path: Path, line: str, reads: bool):
    (tmp_path / "script").write_text(f"{line}\necho done\n")
    assert reads_status(str(tmp_path / "script"), [1], "srun") is reads
