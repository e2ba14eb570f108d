"""The rules of the tree that no linter knows: sizes, purity, what a plugin file holds, what is shipped.

Reads the sources as text or syntax trees, and imports them only where the rule is about importing. The import rules
between packages are import-linter's (pyproject.toml); here stand those that it cannot say.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from plait.core import interfaces, task
from plait.core.values import Frozen
from scripts.checkout import ROOTS, SIDE
from tests.plugin_names import sharing

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = (*ROOTS, *SIDE)
CORE = "orchestrator/plait/core"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 120
TOO_LONG: frozenset[str] = frozenset()  # stays empty: what is too long holds two ideas

# Where plugins live and what each file must export one of. A worker is a protocol, so it is known by its methods.
PLUGINS: dict[str, type] = {
    "planners/plait/planners/search": interfaces.Planner,
    "planners/plait/planners/split": interfaces.Planner,
    "planners/plait/planners/threads": interfaces.Planner,
    "planners/plait/planners/tools": interfaces.Planner,
    "planners/plait/planners/votes": interfaces.Planner,
    "policies/plait/policies/schedule": interfaces.Policy,
    "policies/plait/policies/prune": interfaces.Policy,
    "policies/plait/policies/stop": interfaces.Policy,
    "policies/plait/policies/merge": interfaces.Merge,
    "policies/plait/policies/allocate": interfaces.Merge,
    "orchestrator/plait/tasks": task.Task,
    "packages/plait-bench/plait_bench/tasks": task.Task,
    "packages/plait-research/plait_research/planners": interfaces.Planner,
    "packages/plait-research/plait_research/policies/merge": interfaces.Merge,
    "packages/plait-research/plait_research/policies/prune": interfaces.Policy,
    "packages/plait-research/plait_research/workers": interfaces.Worker,
    "workers/plait/workers": interfaces.Worker,
}
OF_SIDE = tuple(root.rpartition("/")[2].replace("-", "_") for root in SIDE)
"""The packages of the side distributions."""
PLANNERS, POLICIES, TASKS, WORKERS = (
    (home, *(f"{root}/{package}/{kind}" for root, package in zip(SIDE, OF_SIDE, strict=True)))
    for kind, home in (
        ("planners", "planners"),
        ("policies", "policies"),
        ("tasks", "orchestrator/plait/tasks"),
        ("workers", "workers"),
    )
)
"""Folders of plugins, of plait and of the side distributions."""
HEAVY = ("ray", "torch", "transformers", "vllm")
OPTIONAL = (
    *HEAVY,
    "jinja2",
    "math_verify",
    "matplotlib",
    "mcp",
    "opentelemetry",
    "prompt_toolkit",
    "pyarrow",
    "tokenizers",
)
"""Libraries of extras."""


@cache
def tracked() -> tuple[str, ...]:
    """Paths of what git tracks or would track, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    paths = sorted({name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()})
    assert "pyproject.toml" in paths
    return tuple(paths)


@cache
def tree(path: str) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=path)


def sources(*folders: str) -> list[str]:
    """Python files under the folders, all of them where none is named."""
    below = tuple(f"{folder}/" for folder in folders)
    return [path for path in tracked() if path.endswith(".py") and path.startswith(below or "")]


def kind_folder(path: str) -> str:
    """The folder of plugins that a plugin stands in; a plugin that is a package is its `__init__.py`."""
    parent = Path(path).parent
    return str(parent.parent if path.endswith("/__init__.py") else parent)


def plugin_files() -> list[str]:
    """One path a plugin, a file or a package's `__init__.py`; a leading underscore marks what several share."""
    found = [path for path in sources(*SHIPPED) if kind_folder(path) in PLUGINS]
    names = {path: path.removesuffix("/__init__.py").rpartition("/")[2] for path in found}
    return [path for path in found if not names[path].startswith("_")]


def module_name(path: str) -> str:
    """Return the name that a file is imported by: the folders of `SHIPPED` are roots."""
    root = next((root for root in SHIPPED if path.startswith(f"{root}/")), "")
    return path.removeprefix(f"{root}/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(path: str) -> Iterator[tuple[str, int]]:
    """Absolute names of what a file imports anywhere in it (`package.module.name` of `from`), with the line."""
    parts = module_name(path).split(".")
    package = parts if path.endswith("/__init__.py") else parts[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*above, *([node.module] if node.module else [])))
            for alias in node.names:
                yield f"{stem}.{alias.name}", node.lineno


MODULES = frozenset(module_name(path) for path in sources())
"""Names of all modules of the checkout."""


def is_name(dotted: str) -> bool:
    """Whether a dotted name is something in a module, and no module."""
    return dotted not in MODULES


def is_within(module: str, package: str) -> bool:
    """Whether a dotted name is a package or inside it."""
    return module == package or module.startswith(package + ".")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter at the root."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)


# --- sizes -----------------------------------------------------------------------------------------------------------


def over(paths: Iterable[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """Make one test of a check of files: a test for each of thousands would take longer than the checks."""

    def made(check: Callable[[str], None]) -> Callable[[], None]:
        @functools.wraps(check)
        def test() -> None:
            failed: list[str] = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    failed.append(f"{path}: {error}")
            assert not failed, "\n".join(failed)

        del test.__wrapped__  # its parameter would be taken for a fixture
        return test

    return made


@over(sources())
def test_files_and_functions_stay_short(path: str) -> None:
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE_LINES or path in TOO_LONG, f"{path} has {lines} lines, more than {MAX_FILE_LINES}"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES or f"{path}:{node.name}" in TOO_LONG, (
                f"{path}:{node.lineno} {node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"
            )


@over(sources(*SHIPPED))
def test_every_shipped_file_says_what_it_is(path: str) -> None:
    # An __init__.py that only marks a package has nothing to say.
    assert ast.get_docstring(tree(path)) or not tree(path).body, f"{path} has no module docstring"


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_public_class_name_occurs_once() -> None:
    """One name, one thing: a reader who searches for a class finds that one."""
    places: dict[str, list[str]] = {}
    for path in sources(*SHIPPED):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, twice


@over(sources(*SHIPPED))
def test_a_local_name_says_what_it_holds(path: str) -> None:
    nodes = list(ast.walk(tree(path)))
    # A field of a class is no local name: those that are written to files (`Message.said`) keep theirs.
    fields = {id(part.target) for node in nodes if isinstance(node, ast.ClassDef)
              for part in node.body if isinstance(part, ast.AnnAssign)}  # fmt: skip
    for node in nodes:
        if id(node) in fields:
            continue
        if isinstance(node, ast.Name | ast.arg):
            bound = node.id if isinstance(node, ast.Name) else node.arg
            assert bound not in ("each", "found", "said"), f"{path}:{node.lineno}: call {bound!r} what it is"


IRREGULAR = frozenset(
    "Begun Bound Brought Caught Chosen Cut Done Drawn Fallen Felt Found Given Gone Grown Heard Held Kept Known Left "
    "Lost Made Meant Met Paid Put Ran Read Said Seen Sent Set Shown Sold Spoken Taken Told Tried Written".split()
)
NOUNS = frozenset({"Embed", "Feed", "Need", "Seed", "Speed"})
"""Words that only look like a participle."""
EVENTS = {
    "orchestrator/plait/core/events.py",
    "orchestrator/plait/core/kv_blocks.py",
    "orchestrator/plait/runtime/client/answer.py",
    "packages/plait-server/plait_server/stream_events.py",
}
"""Files of events: what has happened in a run, what a client hears of it, what an engine says of its cache."""


@over(sources(*SHIPPED))
def test_a_past_participle_names_what_has_happened(path: str) -> None:
    """A class is a noun. Events and exceptions are what has happened; a plugin's class has the name that users type."""
    plugin = (Path(path).parent if path.endswith("__init__.py") else Path(path)).stem.replace("_", "")
    shared = [name.lower() for name in sharing(module_name(path))]
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.ClassDef) or path in EVENTS or node.name.lower() in {plugin, *shared}:
            continue
        bases = " ".join(map(ast.unparse, node.bases))
        if re.search(r"(Error|Exception|Interrupted|Failed|Lost)\b", bases):
            continue
        last = re.findall(r"[A-Z][a-z0-9]*", node.name)[-1:]
        wrong = [word for word in last if (word.endswith("ed") or word in IRREGULAR) and word not in NOUNS]
        assert not wrong, f"line {node.lineno}: {node.name} is no noun"


# --- purity of the core ----------------------------------------------------------------------------------------------

# What tells the time, draws numbers, reads the machine, or waits.
IMPURE = frozenset(
    [
        "asyncio",
        "concurrent",
        "contextvars",
        "datetime",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "platform",
        "random",
        "secrets",
        "select",
        "selectors",
        "signal",
        "socket",
        "sqlite3",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "uuid",
    ]
)
CORE_MAY_IMPORT = frozenset(sys.stdlib_module_names - IMPURE) | {
    "attrs",
    "jsonschema",
    "jsonschema_specifications",
    "networkx",
    "pydantic",
    "pydantic_core",
    "re2",
    "referencing",
    "typing_extensions",
}


@over(sources(CORE))
def test_core_imports_only_what_is_pure(path: str) -> None:
    for module, line in imports(path):
        pure = module.split(".")[0] in CORE_MAY_IMPORT or is_within(module, "plait.core")
        assert pure, f"{path}:{line} imports {module}"


@over(sources(CORE))
def test_core_has_no_any(path: str) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module in {"typing", "typing_extensions"}:
            assert "Any" not in {alias.name for alias in node.names}, f"{path}:{node.lineno} imports Any"
        if isinstance(node, ast.Attribute):
            assert node.attr != "Any", f"{path}:{node.lineno} uses Any"


@over(sources(CORE, *POLICIES))
def test_pure_code_depends_on_no_order_of_a_set_and_no_hash(path: str) -> None:
    """A set of strings is iterated in another order under another PYTHONHASHSEED, and replay diverges."""
    hashers = [node for node in ast.walk(tree(path)) if getattr(node, "name", "") == "__hash__"]
    may_hash = {call for hasher in hashers for call in ast.walk(hasher)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.For | ast.comprehension):
            where = f"{path}:{node.iter.lineno}"
            assert not isinstance(node.iter, ast.Set | ast.SetComp), f"{where} iterates over a set"
            if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name):
                assert node.iter.func.id not in {"set", "frozenset"}, f"{where} iterates over a set"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node not in may_hash:
            assert node.func.id not in {"hash", "id", "open", "print", "input"}, (
                f"{path}:{node.lineno} calls {node.func.id}()"
            )


# What runs text as a program, or starts one.
EXECUTES = frozenset(["eval", "exec", "compile", "__import__", "breakpoint"])
LAUNCHES = frozenset(
    ["builtins", "code", "codeop", "ctypes", "dill", "marshal", "multiprocessing", "os", "pickle", "pty", "runpy"]
    + ["shelve", "shutil", "subprocess", "yaml"]
)
LOADS_BY_NAME = {
    "planners/plait/planners/threads/threads/dialects/__init__.py",  # a file of its own folder
}


@over(sources(*PLANNERS, *POLICIES, *TASKS))
def test_what_reads_a_models_text_can_execute_nothing(path: str) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name):  # not only calls: `run = eval` is one, too
            assert node.id not in EXECUTES, f"{path}:{node.lineno} uses {node.id}"
        if isinstance(node, ast.Attribute) and node.attr in EXECUTES:
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            assert owner == "re", f"{path}:{node.lineno} uses {owner}.{node.attr}"
    for module, line in imports(path):
        top = module.split(".")[0]
        assert top not in LAUNCHES, f"{path}:{line} imports {module}"
        assert top != "importlib" or path in LOADS_BY_NAME, f"{path}:{line} imports {module}"


# --- who imports what ------------------------------------------------------------------------------------------------


@over(sources(*PLANNERS, *POLICIES, *TASKS, *WORKERS))
def test_plugins_import_only_the_core_of_ours(path: str) -> None:
    own = ".".join(["plait", *module_name(path).split(".")[1:2]])  # with what plugins of this kind share
    for module, line in imports(path):
        if module.split(".")[0] == "plait":
            allowed = is_within(module, "plait.core") or is_within(module, own)
            assert allowed, f"{path}:{line} imports {module}; a plugin may import plait.core only"


@over(sources(*SHIPPED))
def test_what_begins_with_an_underscore_is_seen_by_its_siblings_only(path: str) -> None:
    """`plait.workers._shared` is for `plait.workers`, `plait.policies.merge._grouping` for `plait.policies.merge`. A
    side distribution requires exactly this version, so it may use `plait.workers._shared` in its workers, and so on."""
    siblings = module_name(path)
    if path.startswith(SIDE):
        siblings = f"plait.{'.'.join(siblings.split('.')[1:])}"
    for module, line in imports(path):
        folders = module.split(".")[:-1] if is_name(module) else module.split(".")
        for depth, part in enumerate(folders):
            if part.startswith("_") and folders[0] == "plait":
                home = ".".join(folders[:depth])
                is_sibling = is_within(module_name(path), home) or is_within(siblings, home)
                assert is_sibling, f"{path}:{line} imports {module}, private to {home}"


@over(sources(*PLANNERS, *POLICIES, *TASKS, *WORKERS))
def test_a_plugins_package_is_private_to_it(path: str) -> None:
    """Another plugin may import the names of a package's `__init__.py`, but none of the modules in it."""
    packages = {module_name(each) for each in plugin_files() if each.endswith("/__init__.py")}
    for module, line in imports(path):
        home = module if module in packages else next((each for each in packages if is_within(module, each)), None)
        if home is None or is_within(module_name(path), home):
            continue
        inside = module.removeprefix(home).strip(".")
        assert inside.count(".") == 0 and f"{home}.{inside}" not in MODULES, (
            f"{path}:{line} imports {module}, inside another plugin: import it from {home}, or move it to _shared"
        )


@over(sources(*SHIPPED))
def test_imports_inside_a_folder_are_relative(path: str) -> None:
    parts = module_name(path).split(".")
    own = parts[0] if path.startswith(("orchestrator/", *SIDE)) else ".".join(parts[:2])
    others = tuple(f"plait.{folder}" for folder in ROOTS)  # of `plait`, but folders of their own
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            elsewhere = own == "plait" and name.startswith(others)
            assert elsewhere or not is_within(name, own), f"{path}:{node.lineno} imports {name}: write it relative"


# What apps take of Ray is a client of its Jobs API, and its libraries that run an app of ours; never its core's actors.
OF_RAY = {
    "orchestrator/plait/apps/batch/ray_data.py": ("ray",),
    "orchestrator/plait/apps/job.py": ("ray.job_submission",),
    "packages/plait-server/plait_server/ray_serve.py": ("ray.serve",),
}


@over(sources(*SHIPPED))
def test_the_engine_adapter_alone_imports_vllm(path: str) -> None:
    for module, line in imports(path):
        heavy = module.split(".")[0]
        inside = (
            "workers/plait/workers/engine/vllm.py",
            "workers/plait/workers/engine/engine_loader.py",
            "workers/plait/workers/engine/core_process.py",
            "workers/plait/workers/engine/arithmetic.py",
        )  # vLLM itself loads the last two
        assert heavy != "vllm" or path in inside, f"{path}:{line} imports {module}"
        is_rays = path.startswith("workers/") or any(is_within(module, each) for each in OF_RAY.get(path, ()))
        assert heavy != "ray" or is_rays, f"{path}:{line} imports {module}"
        assert not is_within(module, "vllm.entrypoints"), f"{path}:{line} imports {module}"


def test_no_modules_import_one_another() -> None:
    """Also for types alone: two files that need one another are one idea, or hold a third."""
    names = {module_name(path): path for path in sources(*SHIPPED)}
    graph = nx.DiGraph()
    for name, path in names.items():
        for module, _ in imports(path):
            found = module
            while found and found not in names:
                found = found.rpartition(".")[0]
            if found and found != name:
                graph.add_edge(name, found)
    circles = [sorted(each) for each in nx.strongly_connected_components(graph) if len(each) > 1]
    assert not circles, circles


def test_nothing_shipped_imports_what_is_not() -> None:
    for path in sources(*SHIPPED):
        for module, line in imports(path):
            assert module.split(".")[0] not in {"tests", "training", "examples", "experiments"}, (
                f"{path}:{line} imports {module}, which is not shipped"
            )


def test_nothing_of_an_extra_is_imported_before_it_is_needed() -> None:
    done = run_python(
        "import importlib, sys, plait, plait.apps.main\n"
        "for name in plait.__all__: getattr(plait, name)\n"
        "plait.apps.main.build().load_all()\n"
        f"print(*[name for name in {OPTIONAL!r} if name in sys.modules])"
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


BLOCK = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)

sys.meta_path.insert(0, Block())
"""


def test_core_can_be_imported_without_the_engine_and_plugins() -> None:
    done = run_python(
        BLOCK + "import plait.core, pkgutil, importlib, sys\n"
        "for module in pkgutil.walk_packages(plait.core.__path__, 'plait.core.'):\n"
        "    importlib.import_module(module.name)\n"
        "plugins = ('plait.planners', 'plait.policies', 'plait.workers')\n"
        "print(*sorted(name for name in sys.modules if name.startswith(plugins)))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_everything_can_be_imported_without_the_engine() -> None:
    modules = [module_name(path) for path in sources(*SHIPPED)]
    frameworks = [
        *(f"plait_research.adapters.{name}" for name in ("inspect_ai", "verifiers", "verl")),
        *(f"plait_server.adapters.{name}" for name in ("agui", "langchain", "pydantic_ai")),
    ]
    inside = [f"plait.workers.engine.{name}" for name in ("arithmetic", "distribution")]  # loaded by vLLM itself
    modules = [name for name in modules if not name.endswith("__main__") and name not in (*frameworks, *inside)]
    done = run_python(BLOCK + f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


# --- plugins ---------------------------------------------------------------------------------------------------------


def is_plugin(thing: object, kind: type, module: str) -> bool:
    """Whether a name exported by a module is a plugin of the kind, made in that module."""
    if not isinstance(thing, type) or thing.__module__ != module:
        return False
    if kind is interfaces.Worker:
        return all(callable(getattr(thing, name, None)) for name in ("start", "run", "cancel", "health", "close"))
    return issubclass(thing, kind)


def test_every_kind_of_plugin_is_there() -> None:
    assert {kind_folder(path) for path in plugin_files()} == set(PLUGINS)


@over(plugin_files())
def test_a_plugin_file_exports_one_plugin(path: str) -> None:
    name = module_name(path)
    module = importlib.import_module(name)
    exported = [
        public for public in module.__all__ if is_plugin(getattr(module, public), PLUGINS[kind_folder(path)], name)
    ]
    if shared := sharing(module_name(path)):
        assert sorted(exported) == sorted(shared), f"{path}: not as in SHARED"
    else:
        assert len(exported) == 1, f"{path} exports {exported or 'no plugin'} in __all__, not one plugin"
    for plugin in (getattr(module, name) for name in exported):
        assert plugin.__doc__, f"{path}: {plugin.__name__} has no docstring"
        if issubclass(plugin, Frozen):
            assert plugin.model_config.get("frozen")
            for option, field in plugin.model_fields.items():
                assert field.description, f"{path}: the option {option} has no description"


# --- what is written and shipped -------------------------------------------------------------------------------------

TEXT = (".py", ".md", ".toml", ".sh", ".json", ".jsonl", ".yaml", ".yml", ".txt", ".cfg", ".ini", "Makefile", ".ci/run")
HOME = re.compile(r"(?<![\w.<~])/(?:home|root|work|Users)/\w")
INDEX = re.compile("|".join(rf"\b{name}\.{top}\b" for name, top in [("pypi", "org"), ("pythonhosted", "org")]), re.I)


@over([path for path in tracked() if path.endswith(TEXT)])
def test_no_file_names_a_machine(path: str) -> None:
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
        assert not HOME.search(line), f"{path}:{number} has an absolute path of somebody's machine: {line.strip()}"
        assert not INDEX.search(line), f"{path}:{number} names a package index's host: {line.strip()}"


@over([path for path in tracked() if path.startswith("tests/") and path.endswith(".py")])
def test_how_many_examples_a_property_has_is_said_in_one_place(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path != "tests/conftest.py" and "settings" in text:  # to parse all files takes seconds
        taken = {
            name.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom)
            for name in node.names
            if node.module == "hypothesis"
        }
        assert "settings" not in taken, f"{path}: settings of its own override the profiles of tests/conftest.py"


def test_the_commands_of_the_documents_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    said: set[str] = set()
    for document in [path for path in tracked() if path.endswith(".md")]:
        commands = re.findall(r"(?:^\s*(?:\$ )?|`)make ([a-z-]+)", (ROOT / document).read_text(), re.M)
        assert set(commands) <= targets, f"{document}: no such target: {sorted(set(commands) - targets)}"
        said |= set(commands) if document == "README.md" else set()
    assert said >= {"demo", "test"}


def test_every_folder_with_code_is_a_package_and_nothing_is_a_link() -> None:
    folders = {str(Path(path).parent) for path in sources(*SHIPPED) if not path.endswith("/hatch_build.py")}
    assert folders == {str(Path(path).parent) for path in sources(*SHIPPED) if path.endswith("/__init__.py")}
    assert not [path for path in tracked() if (ROOT / path).is_symlink()]


def test_public_names_are_listed_imported_for_checkers_and_found() -> None:
    """`plait/__init__.py` names each three times: for readers, for type checkers, and for the import at first use."""
    import plait

    guarded = next(node for node in tree("orchestrator/plait/__init__.py").body if isinstance(node, ast.If))
    for_checkers = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(plait.__all__) == for_checkers | {"__version__"}
    assert all(hasattr(plait, name) for name in plait.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Orchestra'"):
        plait.Orchestra  # noqa: B018
