# `make docs` writes this file from the definitions.
from collections.abc import Sequence
from typing import TypedDict

from typing_extensions import Unpack as Unpack  # `typing` has it since Python 3.11

class ResourceOptions(TypedDict, total=False):
    nodes: int | None
    spare_nodes: int | None
    gpus: int | None
    gpu_type: str | None
    ranks: int | None
    cpus: int | None
    mem: str | int | None
    mem_per_node: str | int | None
    mem_per_cpu: str | None
    time: str | None
    account: str | None
    partition: str | None
    qos: str | None
    reservation: str | None
    constraint: str | Sequence[str] | None
    exclusive: bool | None
    licenses: str | Sequence[str] | None
    comment: str | None
    mail_user: str | None
    mail_type: str | Sequence[str] | None
    extra: str | Sequence[str] | None
