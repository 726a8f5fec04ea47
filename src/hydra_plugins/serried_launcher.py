"""The launcher of Hydra's multirun that submits an array: `python train.py -m hydra/launcher=serried lr=0.1,0.01`.

Hydra executes this module each time it starts, so it loads Serried only to submit. Hydra does so before `sys.modules`
has the module, and then dataclasses cannot have postponed annotations.
"""

import functools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

log = logging.getLogger(__name__)


@dataclass
class SerriedLauncherConf:
    """Arguments of `serried.map`, and `wait`."""

    _target_: str = "hydra_plugins.serried_launcher.SerriedLauncher"
    wait: bool = True
    """For the results of all jobs. Sweepers that learn from results need it."""
    experiment: str | None = None
    """A table of `serried.toml`, for all keys that are not here."""
    nodes: int | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    ranks: int | None = None
    cpus: int | None = None
    mem: str | None = None
    time: str | None = None
    account: str | None = None
    partition: str | None = None
    cluster: str | None = None
    name: str | None = None
    parallel: int | None = None


ConfigStore.instance().store(group="hydra/launcher", name="serried", node=SerriedLauncherConf, provider="serried")


class SerriedLauncher(Launcher):
    """Each job of a multirun is a task of one array, and calls the program's function in each rank."""

    def __init__(self, wait: bool, **options: Any) -> None:
        self._waits = wait
        self._options = {name: value for name, value in options.items() if value is not None}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra calls it before `launch`."""
        self._context, self._function, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        """Submit the jobs. Return their results, or an empty list with `wait=false`."""
        import serried

        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        configs = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            config = self._context.config_loader.load_sweep_config(self._config, list(overrides))
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = number
            configs.append(config)
        job = functools.update_wrapper(
            functools.partial(_run, self._context, self._function, Singleton.get_state()), self._function
        )
        run = serried.map(job, configs, **self._options)
        log.info("Submitted %d jobs as run %s: serried show %s", len(configs), run.id, run.id)
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            log.info("\t#%d : %s", number, " ".join(filter_overrides(overrides)))
        if not self._waits:
            return []
        results = run.results(return_exceptions=True)
        return [_failed(result) if isinstance(result, BaseException) else result for result in results]


def _failed(error: BaseException) -> JobReturn:
    result = JobReturn(status=JobStatus.FAILED)
    result.return_value = error
    return result


def _run(context: HydraContext, function: TaskFunction, state: Any, config: DictConfig) -> JobReturn:
    """The job in a rank. Raises what `function` raises.

    In place of a relative `hydra.sweep.dir`, outputs go to the task's folder of results.
    """
    Singleton.set_state(state)
    setup_globals()
    is_absolute = os.path.isabs(config.hydra.sweep.dir)  # noqa: PTH117 - text
    if not is_absolute:
        with open_dict(config):
            config.hydra.sweep.dir = os.environ["SERRIED_RESULTS_DIR"]
    result = run_job(function, config, "hydra.sweep.dir", "hydra.sweep.subdir" if is_absolute else None, context)
    result.return_value  # noqa: B018 - raises the exception of `function`
    return result
