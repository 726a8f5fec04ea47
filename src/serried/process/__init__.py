"""Processes of this machine: how they were started. Python 3.9."""
