"""The program that supervises one local job, or answers one. Run by path: found whatever the job's environment says."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

if sys.argv[1] in ("ask", "cancel"):
    from serried.schedulers.local.job_queries import main
else:
    from serried.schedulers.local.supervisor import main

sys.exit(main(sys.argv[1:]))
