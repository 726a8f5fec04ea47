"""What can go wrong before training begins. Each message says what to do, for it is read in a log, days later."""

from __future__ import annotations


class TrainError(RuntimeError):
    """Something that the user can mend."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message = message
        self.hint = hint


class IdentityError(TrainError):
    """The environment does not say, or says in two ways, which rank this process is."""


class ConfigError(TrainError):
    """A setting that the program does not have, or of another type."""


class DeviceError(TrainError):
    """The ranks of this node and the devices that they see do not fit together."""


class StartError(TrainError):
    """The ranks did not find one another."""
