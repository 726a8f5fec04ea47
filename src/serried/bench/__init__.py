"""Benches: one program on more and more ranks, a run for each point of a grid, and the figures of all points.

`points` has the grid, `store` the file of a bench, `submitting` a run for each point, at most once. `measure` turns
what one run wrote into figures, `results` those of all points into means, speed-up, efficiency and cost.
"""
