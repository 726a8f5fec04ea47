"""`python -m serried`."""

from serried.cli import main

main()
