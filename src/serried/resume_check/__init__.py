"""Runs a training twice, once to its end and once stopped and resumed, and compares the two.

`check` submits both runs and stops the second at the chosen steps. `judge` reads their curves and traces and compares
them: they are equal, or it names the first difference.
"""
