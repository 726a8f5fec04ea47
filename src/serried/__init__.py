"""Serried: a training script, from one machine to serried ranks of GPUs."""
