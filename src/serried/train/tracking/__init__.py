"""Trackers of experiments: `run.tracker`, and the sinks that get the values of `run.log`."""
