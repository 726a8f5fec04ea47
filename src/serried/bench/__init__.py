"""Benches: one program on more and more ranks, a run for each point of a grid, and the figures of all points.

A grid enters: `store` keeps it with the run of each point in the file of the bench, and `submitting` submits each point
at most once. What the runs wrote becomes figures, means, speed-up, efficiency and cost in `results`, and a `picture`.
A point that failed stays a row: it is never left out of a mean in silence.
"""
