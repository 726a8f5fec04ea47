"""The program that supervises a local job, or answers another one. Run by path, whatever the environment of the job."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

if sys.argv[1] in ("ask", "cancel"):
    from serried.schedulers.local.commands import answer_job as main
else:
    from serried.schedulers.local.supervisor import main

sys.exit(main(sys.argv[1:]))
