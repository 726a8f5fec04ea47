"""Slurm, from 20.11 on."""
