"""Advice that the last lines of a rank choose: `tests/cli/test_why.py` has the rest."""

from __future__ import annotations

from serried.records.advice import Ended, advice_for
from tables import for_each

WITHOUT_CUDA = (
    "AssertionError: Torch not compiled with CUDA enabled",
    "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and …",
    "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. …",
    "RuntimeError: Cannot access accelerator device when none is available.",
    "RuntimeError: Cannot get CUDA generator without ATen_cuda library. PyTorch splits its backend into two …",
    "RuntimeError: torch.cuda.Stream requires CUDA support",
    "RuntimeError: Tried to instantiate dummy base class Event",
)


@for_each("line", WITHOUT_CUDA)
def test_a_torch_without_cuda_or_gpu_is_recognised_by_each_of_its_messages(line):
    reason, advice = advice_for(Ended("FAILED", "exit", ["Traceback", line])) or (None, None)
    assert (reason, advice is not None and "--gpus 1" in advice.steps[0]) == ("cuda", True)
