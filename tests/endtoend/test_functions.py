"""Python functions on this machine and on Slurm: `serried.submit(function)` and `serried.map`."""

from __future__ import annotations

import json
import subprocess
import sys

MODULE = """\
import os

class Refused(Exception):
    def __init__(self, value, *, why):
        super().__init__(value, why)
        self.value = value

def half(value, scale=1):
    if value < 0:
        raise ValueError(f"no half of {value}")
    if value == 13:
        raise Refused(value, why="it cannot be loaded again")
    return value / 2 * scale, int(os.environ.get("WORLD_SIZE", 1))
"""

PROGRAM = """\
import json, sys
import serried
from mine.halves import half

where = {"cluster": sys.argv[1]}
one = serried.submit(half, args=[8], kwargs={"scale": 10}, ranks=2, **where)
many = serried.map(half, [1, -1, 13], parallel=2, **where)
out = {"one": one.result(), "names": [one.name, many.name]}
found = many.results(return_exceptions=True)
out["many"] = [found[0], *(f"{type(each).__name__}: {each}" for each in found[1:])]
out["note"] = found[1].__notes__
out["states"] = [task.state for task in many.tasks]
print(json.dumps(out))
"""


def test_results_and_exceptions_of_functions_come_back(place):
    folder = place.project / "lib" / "mine"
    folder.mkdir(parents=True)
    (folder / "halves.py").write_text(MODULE)
    (place.project / "lib" / "go.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "lib/go.py", place.cluster],
        cwd=place.project,
        env=dict(place.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["one"] == [40.0, 2]
    assert found["names"] == ["half", "half"]
    assert found["many"][:2] == [[0.5, 1], "ValueError: no half of -1"]
    assert found["many"][2].startswith("RunFailed: the function of run ")
    assert 'raise ValueError(f"no half of {value}")' in found["note"][0]
    assert found["states"] == ["COMPLETED", "FAILED", "FAILED"]
