"""Errors of a training script. Each has a hint, because users read it in a log days later."""

from __future__ import annotations


class TrainError(RuntimeError):
    """An error that the user can fix."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message = message
        self.hint = hint


class IdentityError(TrainError):
    """The environment names no rank for this process, or two different ones."""


class SettingError(TrainError):
    """An unknown setting, or a value of the wrong type."""


class DeviceError(TrainError):
    """The ranks of this node and their visible devices do not match."""


class StartError(TrainError):
    """The ranks could not connect to one another."""
