"""Runs as their readers see them: the record, the run directory, and the state that the evidence shows."""
