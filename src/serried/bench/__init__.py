"""Benches: one program on more and more ranks, a run for each point of a grid, and the figures of all points.

`store` has the grid and the file of a bench, `submitting` a run for each point, at most once. `results` turns what runs
wrote into figures, means, speed-up, efficiency and cost.
"""
