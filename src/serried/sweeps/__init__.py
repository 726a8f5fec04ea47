"""Sweeps: trainings with settings from a range, as the tasks of an array, and the table of their results."""
