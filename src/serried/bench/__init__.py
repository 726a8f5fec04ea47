"""Benches: one program on more and more ranks, a run for each point of a grid, and the figures of all points.

`store` keeps the grid and the run of each point in the bench's file. `submitting` submits each point at most once.
`results` turns what the runs wrote into figures, means, speed-up, efficiency and cost, and `picture` draws them. A
point that failed stays in the table as a row.
"""
