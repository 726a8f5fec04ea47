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
    from serried.train.configuration import config as config
    from serried.train.configuration import fingerprint as fingerprint
    from serried.train.data import shard as shard
    from serried.train.errors import DeviceError as DeviceError
    from serried.train.errors import IdentityError as IdentityError
    from serried.train.errors import SettingError as SettingError
    from serried.train.errors import StartError as StartError
    from serried.train.errors import TrainError as TrainError
    from serried.train.identities import Identity as Identity
    from serried.train.identities import identity as identity
    from serried.train.run import Session as Session
    from serried.train.sessions import session as session

_ERRORS = ("DeviceError", "IdentityError", "SettingError", "StartError", "TrainError")
_HOMES = {
    **dict.fromkeys(_ERRORS, "errors"),
    **dict.fromkeys(("Identity", "identity"), "identities"),
    **dict.fromkeys(("config", "fingerprint"), "configuration"),
    "Session": "run",
    "session": "sessions",
    "shard": "data",
}
__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list


def __getattr__(name: str) -> object:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'serried.train' has no attribute {name!r}")
    return getattr(importlib.import_module(f"serried.train.{_HOMES[name]}"), name)


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
