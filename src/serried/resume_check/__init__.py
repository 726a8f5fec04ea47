"""Runs a training twice, once to its end and once stopped and resumed, and compares the two."""
