"""What a training script imports.

    import serried.train as st

    with st.session() as run:
        model = run.wrap(model)
        loader = run.loader(dataset, batch_size=64)
        ...

Importing this imports no torch; each name below comes from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from serried.train.configuration import config, fingerprint
    from serried.train.data import shard
    from serried.train.errors import DeviceError, IdentityError, SettingError, StartError, TrainError
    from serried.train.identities import Identity, identity
    from serried.train.run import Session
    from serried.train.sessions import session

__all__ = [
    "DeviceError",
    "Identity",
    "IdentityError",
    "Session",
    "SettingError",
    "StartError",
    "TrainError",
    "config",
    "fingerprint",
    "identity",
    "session",
    "shard",
]

_ERRORS = ("DeviceError", "IdentityError", "SettingError", "StartError", "TrainError")
_HOMES = {
    **dict.fromkeys(_ERRORS, "errors"),
    "Identity": "identities",
    "identity": "identities",
    "config": "configuration",
    "fingerprint": "configuration",
    "Session": "run",
    "session": "sessions",
    "shard": "data",
}


def __getattr__(name: str) -> object:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'serried.train' has no attribute {name!r}")
    return getattr(importlib.import_module(f"serried.train.{_HOMES[name]}"), name)


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
