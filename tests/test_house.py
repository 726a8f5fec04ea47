"""The rules of the house, read from the code itself. CONTRIBUTING.md says why they are what they are."""

from __future__ import annotations

import ast
import keyword
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import serried as serried_package
from house import HOUSE, MODULES, ROOT, holds_for, name_of, nodes_of, room_of, tree_of
from tables import for_each

ORDER = (
    "cli",
    "api",
    "lab",
    "resume_check",
    "bench",
    "cleanup",
    "importing",
    "doctor",
    "remote",
    "views",
    "submission",
    "sweeps",
    "records",
    "config",
    "schedulers",
    "templates",
    "train",
    "schema",
    "base",
)
"""A room imports only from rooms that stand below it here."""

TRAVELLERS = ("agent", "schema", "base")
"""What goes to the compute node: the standard library of Python 3.9, `schema` and `base`, nothing else."""

WITHIN_AGENT = (
    "attach",
    "shell",
    "tunnel",
    "head",
    "node",
    "launchers",
    "stacks",
    "checks",
    "ranks",
    "stage_out",
    "stage_in",
    "trials",
    "sampling",
    "containers",
    "finish",
    "attempts",
    "orphans",
    "node_disk",
    "comms",
    "notifications",
    "outcome",
    "helper_process",
    "options",
    "loop",
    "system",
    "attempt",
)
"""The same for what is in `agent`: its folders, and the modules beside them."""

LATER_THAN_39 = {
    "tomllib",  # 3.11
    "itertools.pairwise",  # 3.10
    "itertools.batched",  # 3.12
    "contextlib.aclosing",  # 3.10
    "contextlib.chdir",  # 3.11
    "datetime.UTC",  # 3.11
    "enum.StrEnum",  # 3.11
    "hashlib.file_digest",  # 3.11
    "inspect.get_annotations",  # 3.10
    "operator.call",  # 3.11
    "types.UnionType",  # 3.10
    "types.NoneType",  # 3.10
    "typing.assert_never",  # 3.11
    "typing.Self",  # 3.11
    "typing.TypeAlias",  # 3.10
    "typing.TypeGuard",  # 3.10
    "typing.ParamSpec",  # 3.10
    "typing.Never",  # 3.11
    "typing.Unpack",  # 3.11
    "typing.override",  # 3.12
}
LATER_KEYWORDS = {("zip", "strict"), ("dataclass", "slots"), ("dataclass", "kw_only"), ("field", "kw_only")}
LATER_KEYWORDS |= {("bisect_left", "key"), ("bisect_right", "key")}
LATER_BUILTINS = {"aiter", "anext", "EncodingWarning", "ExceptionGroup", "BaseExceptionGroup"}

STARTS_PROCESSES = {"subprocess", "multiprocessing", "pty"}
STARTS_PROCESSES_BY_OS = {"fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp"}


@cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names that a module imports, at the top or within functions; `from a import b` gives `a.b`."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: imports here name the whole way"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def rooms_imported(path: Path) -> set[str]:
    inside = {name.split(".")[1] for name in imports(path) if name.startswith("serried.")}
    return inside - {room_of(path)}


each_module = holds_for(MODULES)
each_traveller = holds_for([path for path in MODULES if room_of(path) in TRAVELLERS])


def test_every_room_is_in_the_design_in_the_order_of_imports():
    text = (ROOT / "docs" / "dev" / "design.md").read_text(encoding="utf-8")
    table = text.partition("## Rooms")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| `")]
    described = [room for row in rows for room in re.findall(r"`(\w+)/?`", row.split("|")[1])]
    assert described == [*ORDER, "agent"]


TESTS_OF_THE_WHOLE = {"compat", "endtoend", "examples", "faults", "job_scripts"}
"""Folders of tests that belong to no room; each other one is called after its room."""


def test_tests_of_a_room_are_in_a_folder_of_its_name():
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    rooms = {room_of(path) for path in MODULES}
    assert folders - TESTS_OF_THE_WHOLE - rooms == set()
    within_agent = {path.parent.name for path in (ROOT / "tests/agent").glob("*/test_*.py")}
    assert within_agent - {part_of(path) for path in PARTS} == set()


def test_every_room_has_its_place_in_the_order():
    rooms = {room_of(path) for path in MODULES} - {"__init__", "__main__", "agent"}
    assert rooms - set(ORDER) == set()


def test_no_room_has_the_name_of_a_function_of_the_python_api():
    """Python sets a package as an attribute of `serried` when it is imported: `serried.submit` would be one."""
    assert {room_of(path) for path in MODULES} & set(serried_package.__all__) == set()


@holds_for([path for path in MODULES if room_of(path) in ORDER])
def test_imports_run_one_way(path: Path):
    below = set(ORDER[ORDER.index(room_of(path)) + 1 :])
    if name_of(path) == "remote/serve.py":
        below.add("cli")  # the command line that a laptop sends
    assert rooms_imported(path) - below == set()


def part_of(path: Path) -> str:
    """Of `agent`."""
    return path.relative_to(HOUSE / "agent").parts[0].removesuffix(".py")


PARTS = [path for path in MODULES if room_of(path) == "agent" and not part_of(path).startswith("__")]


def test_every_part_of_the_agent_is_drawn_in_the_design_in_the_order_of_imports():
    text = (ROOT / "docs" / "dev" / "design.md").read_text(encoding="utf-8")
    drawing = text.partition("### Inside the agent\n")[2].partition("\n\n    ")[2].partition("\n\n")[0]
    columns = [re.split(r"\s{2,}", line.strip())[0] for line in drawing.splitlines()]
    drawn = [part.removesuffix("/") for column in columns for part in column.split(", ")]
    assert drawn == list(WITHIN_AGENT)
    assert {part_of(path) for path in PARTS} == set(WITHIN_AGENT)


@holds_for(PARTS)
def test_imports_within_the_agent_run_one_way(path: Path):
    below = set(WITHIN_AGENT[WITHIN_AGENT.index(part_of(path)) + 1 :])
    imported = {name.split(".")[2] for name in imports(path) if name.startswith("serried.agent.")}
    assert imported - {part_of(path)} - below == set()


SCHEDULERS = [path.parent for path in (HOUSE / "schedulers").glob("*/commands.py")]


@for_each("folder", SCHEDULERS)
def test_no_scheduler_imports_another(folder: Path):
    others = tuple(f"serried.schedulers.{other.name}" for other in SCHEDULERS if other != folder)
    assert [name for path in folder.glob("*.py") for name in imports(path) if name.startswith(others)] == []


SCHEDULERS_WORDS = re.compile(
    r"(?<![a-z])(slurm|slurmd|slurmstepd|sbatch|squeue|sacct|scontrol|scancel|salloc|pbs|qsub|qstat|qdel|qrls|pbsnodes"
    r"|pbsdsh|pbs_tmrsh)(?![a-z])",
    re.IGNORECASE,
)
"""Also as a part of a variable's name, such as `SLURM_JOB_ID`."""
LOCAL_DISK = "SLURM_TMPDIR"
"""Serried's own name of the folder on a node's disk: ranks get it under every scheduler."""
MAY_NAME_A_SCHEDULER = {
    "lab": "it is a Slurm",
    "remote/serve.py": "variables by which a site names its scheduler",
    "importing": "it reads job scripts for Slurm and PBS",
    "cli/__init__.py": "the help of `lab`, and commands of schedulers that users type by mistake",
    "cli/lab.py": "the help of `lab`",
    "schema/plan.py": "help of settings that one scheduler has",
    "base/shell.py": "packages that bring commands",
    "records/why.py": "advice with a command to type",
    "submission/prepare.py": "a hint that one scheduler can follow",
    "schema/launchers.py": "variables and options of `srun`, and of `pbsdsh` and `pbs_tmrsh`",
    "train/identities.py": "variables that `srun` sets for ranks",
    "agent/launchers/local_socket.py": "the name of a node of a lab, whose nodes share a host name",
    "agent/launchers/local_srun.py": "variables and messages of `srun`, in whose place it is",
    "agent/ranks/command.py": "variables of a step, which a program that starts ranks itself must not see",
    "config/definitions.py": "help of settings that Slurm's own variables set",
    "submission/plan.py": "launchers that a command may begin with",
    "agent/launchers/kinds.py": "`srun` as a launcher of ranks, and MPI's, which must not ask a scheduler",
}


@cache
def names_of_schedulers(path: Path) -> set[str]:
    """In identifiers and strings; what docstrings explain is free."""
    texts = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    words = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            words.add(node.value)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            words.add(node.name.replace("_", " "))
        elif isinstance(node, (ast.Name, ast.Attribute)):
            words.add((node.id if isinstance(node, ast.Name) else node.attr).replace("_", " "))
    return {word for text in words for word in SCHEDULERS_WORDS.findall(text.replace(LOCAL_DISK, ""))}


@holds_for([path for path in MODULES if room_of(path) != "schedulers"])
def test_no_other_room_names_a_scheduler(path: Path):
    excused = {name_of(path), room_of(path)} & MAY_NAME_A_SCHEDULER.keys()
    assert excused or names_of_schedulers(path) == set()


def test_each_excuse_to_name_a_scheduler_is_needed():
    needed = [path for path in MODULES if names_of_schedulers(path)]
    assert set(MAY_NAME_A_SCHEDULER) <= {name for path in needed for name in (name_of(path), room_of(path))}


@each_traveller
def test_what_travels_to_the_compute_node_imports_the_contract_and_the_standard_library_alone(path: Path):
    foreign = {
        name
        for name in imports(path)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not name.startswith(("serried.schema", "serried.base", "serried.base", "serried.agent"))
    }
    assert foreign == set()
    if room_of(path) != "agent":
        assert "agent" not in rooms_imported(path)


def joins_types(node: ast.AST) -> bool:
    """`int | None`, as far as the names tell it from a sum of flags."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.BitOr):
        return False
    texts = [ast.unparse(side) for side in (node.left, node.right)]
    plain = "int|str|float|bool|bytes|list|dict|tuple"
    return any(re.fullmatch(rf"None|({plain}|[A-Z]\w*[a-z])(\[.*\])?", text) for text in texts)


@each_module
def test_what_travels_to_a_login_node_or_a_compute_node_is_python_3_9(path: Path):
    ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 9))
    brought = set() if room_of(path) in TRAVELLERS else {"tomllib"}  # by the archive for a login node
    later = {name for name in imports(path) if {name, name.split(".")[0]} & (LATER_THAN_39 - brought)}
    parts = [getattr(node, part, None) for node in nodes_of(path) for part in ("annotation", "returns")]
    as_text = {id(node) for part in parts if part is not None for node in ast.walk(part)}
    for node in nodes_of(path):
        if joins_types(node) and id(node) not in as_text:
            later.add(ast.unparse(node))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            later |= {f"{node.value.id}.{node.attr}"} & LATER_THAN_39
        elif isinstance(node, ast.Name):
            later |= {node.id} & LATER_BUILTINS
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            function = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            later |= {f"{function}({word.arg}=)" for word in node.keywords if (function, word.arg) in LATER_KEYWORDS}
    assert later == set()
    annotated = any(isinstance(node, (ast.AnnAssign, ast.FunctionDef)) for node in nodes_of(path))
    is_evaluated = name_of(path) == "schema/plan.py"  # a named tuple compiles annotations that are text
    assert not annotated or is_evaluated or "__future__.annotations" in imports(path)


BY_MODULE = {
    "views/web/app.py": {"starlette"},
    "views/web/server.py": {"starlette", "uvicorn"},
    "views/watch/app.py": {"rich", "textual"},  # Textual depends on it
    "views/pictures.py": {"matplotlib", "optuna"},
    "train/lightning.py": {"lightning", "pytorch_lightning"},
    "train/tracking/sinks.py": {"torch", "wandb", "mlflow"},
    "train/tracking/wandb_agent.py": {"torch", "yaml"},  # wandb depends on it
    "train/transformers.py": {"transformers"},
}
"""Libraries of an extra, which may be missing. The module reports that, or the tracker leaves its sink out."""


@each_module
def test_nothing_is_imported_that_is_not_a_declared_dependency(path: Path):
    by_room = {"bench": {"matplotlib"}, "train": {"torch"}, "sweeps": {"yaml"}, "views": {"click", "matplotlib"}}
    own = BY_MODULE.get(name_of(path), by_room.get(room_of(path), {"click"}))
    allowed = sys.stdlib_module_names | {"serried"} | own
    assert {name.split(".")[0] for name in imports(path)} - allowed == set()


@each_module
def test_only_the_shell_starts_processes_on_the_submitting_side(path: Path):
    if room_of(path) in {"agent", "train"} or name_of(path) in {"base/shell.py", "doctor/checks.py", "remote/serve.py"}:
        return  # two fork themselves, with all that they have imported
    by_import = {name for name in imports(path) if name.split(".")[0] in STARTS_PROCESSES}
    by_os = {
        node.attr
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and (node.attr in STARTS_PROCESSES_BY_OS or node.attr.startswith(("exec", "spawn")))
    }
    assert by_import | by_os == set()


MOST_LINES, MOST_MODULES = 87_704, 323
"""Of `src`. Every reader, every start of an agent and every run of the tests pays for them: these only fall."""
MOST_LINES_OF_TESTS = 79_349
MOST_IN_A_FOLDER = 15
LARGER_FOLDERS = {"cli": 32, "schema": 23, "base": 17, "records": 16, "submission": 16, "train": 16}
"""`cli` has a module for each command. The others are to fall to `MOST_IN_A_FOLDER`."""


def lines_in(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py"))


MOST_SUBSCRIPTS, MOST_DICTIONARIES = 444, 171
"""Of `agent` and `schema`: fields that are read by `record["name"]`, and functions that take or return a record without
a type. These only fall, until no dictionary leaves the codecs."""
UNTYPED = re.compile(r"\b([Dd]ict|Mapping)\[str, Any\]|\bMessage\b")


def test_fewer_records_are_dictionaries():
    nodes = [node for path in MODULES if room_of(path) in ("agent", "schema") for node in nodes_of(path)]
    subscripts = sum(
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
        for node in nodes
    )
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    hints = [[ast.unparse(it) for it in (node.args, node.returns) if it is not None] for node in functions]
    assert subscripts <= MOST_SUBSCRIPTS
    assert sum(any(map(UNTYPED.search, texts)) for texts in hints) <= MOST_DICTIONARIES


FEATURES = ("bench", "cleanup", "doctor", "importing", "lab", "resume_check")
"""Rooms that could be deleted with their commands, and nothing else would notice."""


@holds_for([path for path in MODULES if room_of(path) != "cli"])
def test_only_commands_import_a_feature(path: Path):
    assert rooms_imported(path) & set(FEATURES) == set()


def test_no_circle_of_modules():
    names = {
        ".".join(path.with_suffix("").relative_to(HOUSE).parts).removesuffix(".__init__"): path for path in MODULES
    }
    uses = {}
    for name, path in names.items():
        imported = {full.removeprefix("serried.") for full in imports(path)}
        modules = {full if full in names else full.rpartition(".")[0] for full in imported}
        uses[name] = (modules & names.keys()) - {name}
    left = dict(uses)
    while free := [name for name, used in left.items() if not used & left.keys()]:
        for name in free:
            del left[name]
    assert list(left) == []


def test_the_house_does_not_grow():
    assert lines_in(ROOT / "src") <= MOST_LINES
    assert len(MODULES) <= MOST_MODULES
    assert lines_in(ROOT / "tests") <= MOST_LINES_OF_TESTS


def test_a_folder_has_few_modules():
    counts = Counter(path.parent.relative_to(HOUSE).as_posix() for path in MODULES)
    larger = {folder: count for folder, count in counts.items() if count > LARGER_FOLDERS.get(folder, MOST_IN_A_FOLDER)}
    assert larger == {}


@holds_for(sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "torch" in path.read_text(encoding="utf-8")))
def test_a_test_file_that_imports_torch_is_marked_as_a_whole(path: Path):
    """`make test-fast` leaves such a file out before its imports."""
    statements = [ast.unparse(node) for node in tree_of(path).body]
    if any(re.match(r"(import|from) torch\b|.*importorskip\('torch'", statement) for statement in statements):
        assert any(re.match(r"pytestmark = .*pytest\.mark\.torch\b", statement) for statement in statements)


@holds_for(MODULES)
def test_a_module_has_a_name_that_can_be_imported(path: Path):
    assert path.stem.isidentifier()
    assert not keyword.iskeyword(path.stem)


def test_a_class_name_means_one_thing():
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        if room_of(path) != "templates":  # programs that users copy, each on its own
            for node in nodes_of(path):
                if isinstance(node, ast.ClassDef) and node.name != "LeaveInTime":  # one for each framework
                    homes.setdefault(node.name, []).append(name_of(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def modules_after(program: str) -> set[str]:
    """Names of all modules that a fresh interpreter has loaded once `program` is done."""
    report = "\nimport sys; print('\\n' + '\\n'.join(sys.modules))"
    # -S: what a .pth file of the environment imports is not ours.
    paths = [str(HOUSE.parent), *(path for path in sys.path if path.endswith("site-packages"))]
    prelude = f"import sys; sys.path[:0] = {paths!r}\n"
    done = subprocess.run(
        [sys.executable, "-S", "-c", prelude + program + report],
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    return set(done.stdout.splitlines())


HEAVY = {"torch", "asyncio", "importlib.metadata", "tomllib", "email", "ssl", "multiprocessing", "unittest"}


def test_importing_serried_loads_nothing_heavy():
    loaded = modules_after("import serried")
    assert loaded & (HEAVY | {"click", "subprocess", "dataclasses", "json"}) == set()


def test_importing_the_training_library_loads_no_torch():
    loaded = modules_after("import serried.train as st; st.identity()")
    assert "serried.train.identities" in loaded
    assert loaded & {"torch", "numpy", "subprocess", "multiprocessing"} == set()


def test_help_loads_nothing_heavy():
    loaded = modules_after(
        "from serried import cli\nsys.argv = ['serried', '--help']\ntry: cli.main()\nexcept SystemExit: pass"
    )
    assert "serried.cli" in loaded
    assert loaded & HEAVY == set()
