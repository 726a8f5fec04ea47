"""Trainings that begin, end and go on."""

from __future__ import annotations

import logging

import pytest
import train_ranks


@pytest.fixture(scope="session", autouse=True)
def _ranks_end():
    yield
    train_ranks.end()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def train(root):
    """`train(…)` begins a training, or goes on with it; its writer ends with the test."""
    from train_alone import Training  # imports torch

    begun = []

    def begin(**options):
        begun.append(Training(root, **options))
        return begun[-1]

    yield begin
    for each in begun:
        each.checkpoints.close()


@pytest.fixture
def warnings_of(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]
