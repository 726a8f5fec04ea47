"""Sweeps: trainings with settings from a range, as the tasks of an array, and the table of their results.

A W&B sweep file, a table of serried.toml or words of the command line enter `definition`, and the trials of an array
leave; methods that learn from results draw each trial on its node instead (`agent/trials`). `results` joins the trials
of all runs of a sweep, which `records` knows. `wandb_service` creates a sweep where W&B shall draw the trials.
"""
