"""The program that supervises one local job. Run by path, so that it is found whatever the job's environment says."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from serried.schedulers.local.supervisor import main

sys.exit(main(sys.argv[1:]))
