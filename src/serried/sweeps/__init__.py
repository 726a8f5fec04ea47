"""Sweeps: trainings with settings from a range, as the tasks of an array, and the table of their results.

`definition` turns a W&B sweep file, a table of serried.toml or command-line options into the trials of an array.
Methods that learn from results draw each trial on its node instead (`agent/trials`). `results` joins the trials of all
runs of a sweep. `wandb_service` creates a sweep at W&B, whose service then draws the trials.
"""
