"""A project, and a scheduler in memory that does as it is told."""

from submission.conftest import project, root, scheduler

__all__ = ["project", "root", "scheduler"]
