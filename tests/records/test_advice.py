"""Advice that the last lines of a rank choose: `tests/cli/test_why.py` has the rest."""

from __future__ import annotations

from serried.records.why import NO_ADDRESS, Ended, advice_for
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


@for_each(
    "line",
    [
        "train.py: error: the following arguments are required: --local_rank",
        "train.py: error: the following arguments are required: --data, --local-rank",
        "Error: Missing option '--local_rank'.",
    ],
)
def test_a_missing_option_for_the_local_rank_is_answered_with_the_placeholder(line):
    reason, advice = advice_for(Ended("FAILED", "exit", [line], exit_code=2)) or (None, None)
    assert (reason, advice and advice.steps[0].format()) == (
        "no-local-rank",
        "pass it in the command: `--local_rank={local_rank}`",
    )


@for_each("cause", ["exit", "import-error"])
@for_each(("lacks_module", "key"), [(True, "module-ignored"), (False, "import-error")])
def test_a_module_that_the_snapshot_lacks_need_not_be_installed(cause, lacks_module, key):
    line = "ModuleNotFoundError: No module named 'pkg._version'"
    assert (advice_for(Ended("FAILED", cause, [line], lacks_module=lacks_module)) or [None])[0] == key


@for_each("error", ["UnboundLocalError: cannot access local variable 'loss'", "[rank1]: NameError: name 'loss' is not"])
@for_each(("attempt", "key"), [(1, "exit"), (2, "unset-after-stop")])
def test_a_variable_without_a_value_in_a_later_attempt_may_be_one_that_an_empty_loop_sets(error, attempt, key):
    assert (advice_for(Ended("FAILED", "exit", [error], attempt=attempt)) or [None])[0] == key


@for_each(("has_staged_data", "key"), [(True, "staged-elsewhere"), (False, "file-missing")])
def test_a_missing_file_of_a_run_with_staged_data_may_be_in_the_folder_of_data(has_staged_data, key):
    line = "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/job/datasets/a'"
    assert (advice_for(Ended("FAILED", "exit", [line], has_staged_data=has_staged_data)) or [None])[0] == key


def test_c10d_names_the_host_without_an_address():
    line = "[c10d] The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai error: -2)."
    assert NO_ADDRESS.search(line)
