"""Runs a training twice, once to its end and once stopped and resumed, and compares the two.

`check` submits the runs, as any user does, and stops the second at the chosen steps. Their curves and traces enter
`judge`, which is pure; a judgement leaves: exact, or the first step and the state that differ.
"""
