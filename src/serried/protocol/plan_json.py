"""The fields of plan.json that agents read, for type checkers: no module imports these types at run time.

`serried.plan` writes the file and documents its fields. A plan of an earlier version may lack any field that agents
read with `get`.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict, Union


class DialectJson(TypedDict, total=False):
    task: List[str]
    awaited: List[str]
    state_query: str
    job_variables: List[str]
    index_variable: str
    task_prefix: str
    prefixes: List[str]
    selectors: List[str]


class SiteJson(TypedDict, total=False):
    name: str
    scheduler: str
    gpu_option: str
    kill_wait_seconds: int
    local_disk: Optional[str]
    local_disk_bytes: Optional[int]
    local_disk_files: Optional[int]
    cache_bytes: int
    transfer: str
    hides_gpus: bool
    inside: str
    scratch: str
    private: str
    is_this_machine: bool
    dialect: DialectJson


class AllocationJson(TypedDict, total=False):
    nodes: int
    ranks: int
    gpus: int
    cpus: int
    memory_mb: Optional[int]
    time_seconds: Optional[int]
    gpu_type: Optional[str]
    exclusive: bool


class SourceJson(TypedDict, total=False):
    directory: str
    workdir: str
    snapshot: bool
    archive: Optional[str]
    tree_per_task: bool
    links: List[str]
    python_path: List[str]


class EnvironmentJson(TypedDict, total=False):
    env: Dict[str, str]
    secrets: List[str]
    env_file: List[str]
    inherit: Union[str, List[str]]
    venv: Optional[str]
    conda: Optional[str]
    setup: str


class ContainerJson(TypedDict, total=False):
    image: str
    runtime: str
    binds: List[str]
    writable: bool
    options: List[str]
    contained: bool
    local: Optional[bool]


class LimitJson(TypedDict, total=False):
    lead_seconds: int
    grace_seconds: int
    silence_seconds: Optional[int]
    restarts: int
    form: str
    notify: Optional[str]


class LaunchJson(TypedDict, total=False):
    kind: str
    max_restarts: int
    options: List[str]


class UserScriptJson(TypedDict, total=False):
    path: str
    interpreter: List[str]
    umask: int
    input: str
    notice_to: str


class ArrayJson(TypedDict, total=False):
    indices: List[int]
    each: bool
    repeat: Optional[int]
    offsets: List[int]
    draws: bool


class SideCommandJson(TypedDict):
    command: List[str]
    shell: bool
    on: str


class NotifyJson(TypedDict, total=False):
    command: List[str]
    webhook: Optional[str]
    on: List[str]


class AfterJson(TypedDict, total=False):
    run: str
    directory: str
    condition: str
    task: Optional[int]
    job: Optional[str]


class ResumeJson(TypedDict, total=False):
    checkpoints: List[str]


class StagedJson(TypedDict, total=False):
    source: str
    to: str
    unpack: str
    bytes: Optional[int]
    files: Optional[int]


class DataJson(TypedDict, total=False):
    stage: List[StagedJson]
    in_place: List[str]
    results: List[str]
    results_every_seconds: int
    verify: str


class SyncJson(TypedDict, total=False):
    watch: List[str]
    every_seconds: int
    keep: int
    bandwidth: Optional[int]
    keep_local: Optional[int]


class SearchJson(TypedDict):
    method: str
    metric: str
    source: str
    goal: str
    pruner: Optional[Dict[str, Any]]
    space: Dict[str, Dict[str, Any]]
    journal: str
    pythons: List[str]


class SweepJson(TypedDict, total=False):
    parameters: List[str]
    metric: str
    source: str
    search: Optional[SearchJson]


class TrackJson(TypedDict, total=False):
    sinks: List[str]
    project: str
    group: str
    mode: str
    every_process: bool


class ReportedMetricJson(TypedDict):
    name: str
    source: str


class SamplingJson(TypedDict, total=False):
    every_seconds: Optional[int]


class PlanJson(TypedDict, total=False):
    schema: int
    run: str
    name: str
    project: str
    experiment: str
    created: str
    command: List[str]
    site: SiteJson
    allocation: AllocationJson
    source: SourceJson
    shell: bool
    seed: int
    debug: bool
    ranks_meet: bool
    shares_logs: bool
    config: Dict[str, Any]
    sweep: Optional[SweepJson]
    environment: EnvironmentJson
    container: Optional[ContainerJson]
    data: Optional[DataJson]
    sync: Optional[SyncJson]
    limit: LimitJson
    launch: LaunchJson
    script: Optional[UserScriptJson]
    notify: Optional[NotifyJson]
    track: Optional[TrackJson]
    metric: Optional[ReportedMetricJson]
    sampling: SamplingJson
    beside: List[SideCommandJson]
    array: Optional[ArrayJson]
    resume: Optional[ResumeJson]
    after: List[AfterJson]
    smoke: int
    defaults: List[str]
    share: str
