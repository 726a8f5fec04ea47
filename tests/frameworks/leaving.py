"""`python leaving.py SCRIPT …` runs a script as it is, and leaves as soon as it has ended, with its status.

At Python's own leisure a thread of gloo's may abort the interpreter, in one rank of thirty: docs/pitfalls.md.
"""

import os
import runpy
import sys
import traceback

del sys.argv[0]
status = 0
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as leaving:
    status = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
except BaseException:  # noqa: BLE001 - as Python would
    traceback.print_exc()
    status = 1
sys.stdout.flush()
sys.stderr.flush()
os._exit(status)
