"""Checks of what a run will meet, before it starts: `serried doctor`."""
