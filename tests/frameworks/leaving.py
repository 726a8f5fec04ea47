"""`python train.py …` runs `program.py` beside it as it is, and leaves with its status as soon as it has ended.

With gloo, a rank that leaves at Python's own pace may abort in a thread of gloo: docs/library/frameworks.md.
"""

import os
import runpy
import sys
import traceback

status = 0
try:
    runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py"), run_name="__main__")
except SystemExit as leaving:
    status = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
except BaseException:  # noqa: BLE001 - as Python would
    traceback.print_exc()
    status = 1
sys.stdout.flush()
sys.stderr.flush()
os._exit(status)
