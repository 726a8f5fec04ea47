"""Checkpoints that cost a training one copy of its state. The process that writes them loads no torch."""
