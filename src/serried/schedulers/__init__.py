"""Schedulers: what builds their argv and reads their output. Differences between them live here alone."""
