"""Checks of this machine before a run needs it: `serried doctor`."""
