"""Processes of this machine. Python 3.9."""
