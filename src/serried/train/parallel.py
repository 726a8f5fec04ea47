"""A model on this rank's device, in DistributedDataParallel, with gradient buckets that are kept between attempts.

DDP learns in its first backward in which order gradients become ready, and rebuilds its buckets at the next forward.
From three ranks on, the rounding of an all-reduce depends on the place of a number in its bucket. The first step of a
resumed run would thus round differently than the same step of an uninterrupted run. So checkpoints hold the order of
the parameters, and a resumed run reduces in the same buckets from its first step on.

Torch 2.1 to 2.13 has three means for that: a new Reducer with parameters in any order, `_push_all_rebuilt_params`,
which records that they became ready in that order, and `_rebuild_buckets`.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import cache
from inspect import signature
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DataParallel, DistributedDataParallel

from serried.schema import names
from serried.train.checkpoints import sharded
from serried.train.errors import DeviceError
from serried.train.group import Group
from serried.train.identities import Identity

SAMPLE_RATE = 100
"""DDP notes its own state every so many steps, unless the script sets another number; torch cannot be queried."""

torch_distributed: Any = torch.distributed
"""With names that torch does not publish."""

Order = List[str]
"""Names of parameters, bucket by bucket."""

_OF_DDP = ("_build_params_for_reducer", "_build_debug_param_to_name_mapping", "_get_ddp_logging_data")
_OF_REDUCER = ("_push_all_rebuilt_params", "_rebuild_buckets")


def choose_device(who: Identity, requested: Union[str, torch.device, None] = None) -> torch.device:
    """`requested`, else the GPU of the local rank or the only visible one, else Apple's for one rank, else the CPU."""
    if requested is None:
        has_mps = who.world_size == 1 and torch.backends.mps.is_available()
        requested = "cuda" if torch.cuda.device_count() else "mps" if has_mps else "cpu"
    device = torch.device(requested)
    if device.type == "cuda":
        device = torch.device("cuda", _index(who) if device.index is None else device.index)
        torch.cuda.set_device(device)
    elif device.type == "mps" and who.world_size > 1:
        raise DeviceError("Apple's GPU serves one rank only", "use `device='cpu'`, or one rank")
    return device


def _index(who: Identity) -> int:
    """This rank's GPU. A launcher that gives each rank a GPU of its own shows it to each rank as number 0."""
    visible = torch.cuda.device_count()
    if visible == 0:
        raise DeviceError("this rank needs a GPU and sees none", "check `CUDA_VISIBLE_DEVICES`")
    if visible == 1:
        return 0
    if visible < who.local_world_size:
        raise DeviceError(
            f"{who.local_world_size} ranks on this node see {visible} GPUs",
            "start one rank per GPU, or let each rank see only its own",
        )
    return who.local_rank


def wrap(model: nn.Module, who: Identity, device: torch.device, parallel: Optional[str] = None, **options: Any) -> Any:
    """As `Session.wrap`. A bench may decide for the script, or let DDP exchange no gradients.

    Raises:
        ValueError: `parallel` is unknown.
        DeviceError: DataParallel with several ranks.
    """
    if parallel not in (None, "ddp", "dp", "none"):
        raise ValueError(f"`parallel` must be `ddp`, `dp` or `none`, not {parallel!r}")
    if isinstance(model, (DistributedDataParallel, DataParallel)) or sharded.is_sharded(model):
        return model
    model = model.to(device)
    of_bench = os.environ.get(names.PARALLEL)
    if (parallel or of_bench) == "dp":
        if who.world_size > 1:
            raise DeviceError("DataParallel works in one process only", "leave `parallel` out")
        return DataParallel(model) if torch.cuda.device_count() > 1 else model
    has_gradients = any(parameter.requires_grad for parameter in model.parameters())
    if parallel == "none" or who.world_size == 1 or not has_gradients:
        return model
    wrapped = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None, **options)
    if of_bench == "no-sync":
        wrapped.require_backward_grad_sync = False  # as within `no_sync()`
    return wrapped


class Buckets:
    """Those of all models that are wrapped while a session is open. The same on all ranks."""

    replicated = True

    def __init__(self, group: Group) -> None:
        self._group = group
        self._models: WeakKeyDictionary[DistributedDataParallel, int] = WeakKeyDictionary()
        """Each with its number, in order of creation."""
        self._orders: WeakKeyDictionary[DistributedDataParallel, Order] = WeakKeyDictionary()
        """The orders of models that have rebuilt their buckets."""
        self._count = 0
        self._restored: Dict[int, Optional[Order]] = {}
        """From the checkpoint, by the models' numbers; each is taken once."""
        self._late: WeakSet[DistributedDataParallel] = WeakSet()
        """Created after the checkpoint was read, and not used yet."""
        self._hook = register_module_module_registration_hook(self._see) if group.is_open else None

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def _see(self, module: nn.Module, name: str, _: Optional[nn.Module]) -> None:
        """Torch calls this for each module that becomes part of another, also of DDP."""
        if name != "module" or not isinstance(module, DistributedDataParallel):
            return
        self._models[module] = self._count
        self._count += 1
        if not self._restored:
            return

        def at_first_forward(model: DistributedDataParallel, _: Any) -> None:
            handle.remove()
            if model in self._late:  # and not a copy
                self._late.remove(model)
                self._arrange(model)

        self._late.add(module)
        handle = module.register_forward_pre_hook(at_first_forward)

    def settle(self) -> None:
        """Before a checkpoint, let DDP rebuild the buckets that it would rebuild at the next forward. Collective."""
        unknown = [model for model in self._models if model not in self._orders and _rebuilds(model)]
        for model in self._agree(unknown):
            with contextlib.suppress(RuntimeError):  # gradients are missing; DDP raises the same at the next forward
                order = _rebuilt(model)
                if order is not None:
                    self._orders[model] = order

    def orders(self) -> List[Tuple[str, Union[Order, str, None]]]:
        """For a resume check: each model's class, and the order in which its gradients are reduced from here on.

        None is an order that torch has yet to learn.
        """
        orders = []
        for model in self._by_number():
            number = self._number_restored(model) if model in self._late else None
            order = self._orders.get(model) if number is None else self._restored[number]
            orders.append((type(model.module).__name__, "fixed" if _is_fixed(model) else order))
        return orders

    def state_dict(self) -> Dict[str, Any]:
        return {"orders": {self._models[model]: self._orders.get(model) for model in self._by_number()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Collective."""
        self._restored = dict(state["orders"])
        for model in self._agree(model for model in self._models if _rebuilds(model)):
            self._arrange(model)

    def _arrange(self, model: DistributedDataParallel) -> None:
        number = self._number_restored(model)
        order = None if number is None else self._restored.pop(number)
        if order is not None and self._orders.get(model) != order:
            _rearrange(model, order)
            self._orders[model] = order

    def _number_restored(self, model: DistributedDataParallel) -> Optional[int]:
        """The restored order for this model: of its own number, else of a model with the same parameters."""
        if not self._restored or not _rebuilds(model):
            return None
        own = self._models[model]
        names = sorted(_names(model))
        alike = [number for number, order in self._restored.items() if order is not None and sorted(order) == names]
        is_own = own in self._restored and (own in alike or self._restored[own] is None)
        return own if is_own else next(iter(alike), None)

    def _by_number(self) -> List[DistributedDataParallel]:
        return sorted(self._models, key=self._models.__getitem__)

    def _agree(self, models: Iterable[DistributedDataParallel]) -> List[DistributedDataParallel]:
        """The `models` that all ranks still have: one rank may have collected garbage that another has not."""
        here = {self._models[model]: model for model in models}
        if self._group.reduce_max((len(here),)) == [0]:
            return []
        numbers: List[int] = self._group.broadcast(sorted(here))
        if not numbers:
            return []
        missing = self._group.reduce_max([int(number not in here) for number in numbers])
        return [here[number] for number, is_missing in zip(numbers, missing) if not is_missing]


@cache
def _is_known_torch() -> bool:
    """Whether torch still has the private functions used here. Else the first resumed step rounds differently."""
    reducer = getattr(torch_distributed, "Reducer", None)
    try:
        signature(DistributedDataParallel._ddp_init_helper).bind(None, [], [], {}, False)
    except (AttributeError, TypeError, ValueError):
        return False
    return all(hasattr(DistributedDataParallel, name) for name in _OF_DDP) and all(
        hasattr(reducer, name) for name in _OF_REDUCER
    )


def _is_fixed(model: Any) -> bool:
    """Whether DDP keeps its first buckets."""
    return bool(model.find_unused_parameters and not model.static_graph)


def _rebuilds(model: Any) -> bool:
    """Whether DDP changes its buckets after the first backward, and this module can change them beforehand."""
    if not _is_known_torch() or getattr(model, "reducer", None) is None or _is_fixed(model):
        return False
    if getattr(model, "_use_python_reducer", False):
        return False
    has_other_hook = not _comm_hooks(model) and bool(model._get_ddp_logging_data().get("comm_hook"))
    return not has_other_hook  # another reducer could not get such a hook


def _comm_hooks(model: Any) -> List[Any]:
    """The hooks that DDP remembers: none of C++, and none at all before torch 2.2."""
    return getattr(model, "_comm_hooks", [])


def _names(model: Any) -> Order:
    """The parameters that DDP reduces, in the order of its own numbers."""
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    return [names[id(parameter)] for parameter in model._build_params_for_reducer()[0]]


def _rebuilt(model: Any) -> Optional[Order]:
    """The order in the buckets; rebuilds them if that is due. Collective."""
    model.reducer._rebuild_buckets()
    model._set_ddp_runtime_logging_sample_rate(1)
    model.logger.set_runtime_stats_and_log()
    model._set_ddp_runtime_logging_sample_rate(SAMPLE_RATE)
    facts = model._get_ddp_logging_data()
    if not facts.get("has_rebuilt_buckets"):
        return None
    names = _names(model)
    return [names[int(number)] for number in re.findall(r"\d+", facts["rebuilt_per_bucket_param_indices"])]


def _rearrange(model: Any, order: Order) -> None:
    """Create the buckets that DDP would rebuild if gradients became ready in this order. Collective."""
    numbers = {name: number for number, name in enumerate(_names(model))}
    given, given_sparse = model._build_params_for_reducer()
    parameters = [given[numbers[name]] for name in order]
    sparse = [given_sparse[numbers[name]] for name in order]
    model.reducer = model.logger = None  # or two reducers would listen for the same gradients for a moment
    debugging = model._build_debug_param_to_name_mapping(parameters)
    model._ddp_init_helper(parameters, sparse, debugging, model.static_graph)
    if model.static_graph:
        model.reducer._set_static_graph()
        model.logger._set_static_graph()
    for hook, state in _comm_hooks(model):
        model.logger._set_comm_hook_name(hook.__qualname__)
        torch_distributed._register_comm_hook(model.reducer, state, hook)
    if getattr(model, "mixed_precision", None) is not None:
        model.reducer._set_mixed_precision_param_dtype(model.mixed_precision.param_dtype)
    model.reducer._push_all_rebuilt_params()
    model.reducer._rebuild_buckets()
    model._has_rebuilt_buckets = True
