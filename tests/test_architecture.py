"""The arrows of the house: which package may import which, in a method's folder which file which; none in a circle.

A package is one of the folders at the top. A room is a folder of a package, and so is each file at a package's root.
"""

import ast
import json
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from bouquet.common.methods import METHODS

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "common": set(),
    "strategies": {"common"},
    "client": {"common"},
    "server": {"common", "strategies"},
    "experiments": {"common", "strategies", "client", "server"},
    "bouquet": {"common", "strategies", "client", "server", "experiments"},
}
# Folders of methods have arrows of their own: the base, the mathematics, and methods that they extend.
METHODS_MAY_IMPORT = {
    "bouquet.strategies.base",
    "bouquet.strategies.mathematics",
    "bouquet.strategies.baselines",
    "bouquet.strategies.fesem",
}
MOST_FILES = 16
# Packages whose __init__ is more than a sentence: faces, and lazy names.
FACES = {
    "bouquet.common.protocol",
    "bouquet.common.settings",
    "bouquet.strategies",
    "bouquet.strategies.mathematics",
    "bouquet",
}

# In a method's folder a file's name says what else it may import, and what it must do without.
ALSO = {"device.py": {"client"}}
NEVER = {
    "device.py": {"scipy", "sklearn", "matplotlib"},
    "wire.py": {"torch", "scipy", "sklearn", "matplotlib", "strategies"},
}
SERVER_SIDE_NEVER = {"torch", "torchvision", "matplotlib"}


@cache
def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def modules():
    """Module → file, of all packages."""
    files = [file for package in MAY_IMPORT for file in (ROOT / package).rglob("*.py")]
    return {name_of(file.with_suffix("")).removesuffix(".__init__"): file for file in files}


def name_of(path):
    """What a file or folder is imported as."""
    return ".".join(("bouquet", *path.relative_to(ROOT).parts)).replace("bouquet.bouquet", "bouquet")


def package_of(module):
    """The package of ours that a module is in; of others, their first name."""
    first, _, rest = module.partition(".")
    second = rest.partition(".")[0]
    return second if first == "bouquet" and second in MAY_IMPORT else first


def imported(file):
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def imported_modules(file):
    """The modules of ours that a file imports, also inside of its functions or for a type checker alone."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else node.module for name in names]
        else:
            continue
        yield from (name for name in names if name in modules())


def hidden_imports(file):
    """What an import may be written as so that none of the other tests sees it."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield ast.unparse(node)  # relative
        elif isinstance(node, ast.Import) and any(alias.name == "flwr" for alias in node.names):
            yield ast.unparse(node)  # and then flwr.any.private.name
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
            if name.partition(".")[0] in {"bouquet", "flwr"}:
                yield ast.unparse(node)


def room_of(module):
    if modules()[module].name == "__init__.py" or modules()[module].parent.parent == ROOT:
        return module
    return module.rpartition(".")[0]


def packages(file):
    return {package_of(name) for name in imported(file)}


def circles(graph):
    """Nodes that are on a circle: what is left when leaves are taken off until there are none."""
    left = {node: set(targets) for node, targets in graph.items()}
    while True:
        leaves = {node for node, targets in left.items() if not targets & set(left)}
        if not leaves:
            return sorted(left)
        left = {node: targets for node, targets in left.items() if node not in leaves}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_it_may(package):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    wrong = {}
    for file in files:
        also = ALSO.get(file.name, set()) if package == "strategies" else set()
        forbidden = set(MAY_IMPORT) - MAY_IMPORT[package] - {package} - also
        if found := forbidden & packages(file):
            wrong[str(file.relative_to(ROOT))] = found
    assert wrong == {}


def test_no_import_is_hidden_from_these_tests():
    assert {module: found for module, file in modules().items() if (found := [*hidden_imports(file)])} == {}


def test_nothing_is_imported_by_the_name_of_a_folder_alone():
    """Else a module were loaded twice, under two names; and a user's own client.py would be loaded in its place."""
    ours = [file for place in (*MAY_IMPORT, "benchmarks", "examples", "tests") for file in (ROOT / place).rglob("*.py")]
    folders = set(MAY_IMPORT) - {"bouquet"}
    wrong = {file: found for file in ours if (found := folders & {name.partition(".")[0] for name in imported(file)})}
    assert wrong == {}


def arrows():
    found = defaultdict(set)
    for module, file in modules().items():
        for other in imported_modules(file):
            ours, theirs = room_of(module), room_of(other)
            if ours != theirs and package_of(ours) == package_of(theirs):
                found[ours].add(theirs)
    return found


def test_a_method_imports_the_base_the_mathematics_and_what_it_extends():
    rooms = arrows()
    for file in (ROOT / "strategies").glob("*/strategy.py"):
        method = name_of(file.parent)
        if method != "bouquet.strategies.base":
            assert rooms[method] - {"bouquet.strategies"} <= METHODS_MAY_IMPORT, method


def test_no_arrow_goes_in_a_circle():
    between_modules = {module: set(imported_modules(file)) - {module} for module, file in modules().items()}
    # What a package's __init__ imports when it is asked for a name leads nowhere.
    lazy = {"bouquet", "bouquet.strategies", "bouquet.strategies.mathematics"}
    assert circles({m: set() if m in lazy else targets for m, targets in between_modules.items()}) == []
    assert circles(arrows()) == []


def test_a_room_is_small_and_says_what_lives_there():
    for folder in sorted({file.parent for file in modules().values()}):
        room = name_of(folder)
        file = folder / "__init__.py"
        assert file.exists(), room
        assert len([f for f in folder.glob("*.py") if f.name != "__init__.py"]) <= MOST_FILES, room
        assert ast.get_docstring(tree_of(file)), room
        if room not in FACES:
            assert set(imported(file)) == set(), room


def test_in_a_methods_folder_a_files_name_says_what_it_may_import():
    wrong = {}
    for file in (ROOT / "strategies").rglob("*.py"):
        if found := NEVER.get(file.name, SERVER_SIDE_NEVER) & packages(file):
            wrong[str(file.relative_to(ROOT))] = found
    # wire.py is for both ends: nothing of the strategy's, and no other method's.
    assert wrong == {}


def test_a_procedure_knows_its_own_names_and_nothing_else_of_the_strategies():
    files = list((ROOT / "strategies").rglob("device.py"))
    assert len(files) >= 4
    for file in files:
        own = name_of(file.parent)
        names = {name for name in imported(file) if package_of(name) == "strategies"}
        assert names <= {own, f"{own}.wire"}, file


def test_the_mathematics_knows_nothing_of_flower_or_of_a_method():
    for file in (ROOT / "strategies" / "mathematics").glob("*.py"):
        names = set(imported(file))
        assert "flwr" not in {name.partition(".")[0] for name in names}, file
        strangers = {name for name in names if package_of(name) == "strategies" and ".mathematics" not in name}
        assert strangers == set(), file


def test_nothing_of_a_method_is_imported_before_it_is_asked_for():
    modules = {method.strategy.partition(":")[0] for method in METHODS.values()}
    devices = {module for method in METHODS.values() for module in method.procedures.values()}
    asked = "bouquet.strategies.mathematics", "bouquet.strategies.registry", "bouquet.client.procedures.registry"
    program = f"import sys, {', '.join(asked)}\nprint(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(run.stdout.split())
    assert not loaded & (modules | devices | {"torch", "scipy", "sklearn", "matplotlib"})


def test_an_agent_loads_nothing_that_a_model_needs():
    """It stays on a device for months, beside the training."""
    program = "import sys, bouquet.client.agent.main, bouquet.client.agent.agent\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    heavy = {"torch", "flwr", "numpy", "pydantic", "PIL", "cryptography", "bouquet.client.app"}
    assert not {*run.stdout.split()} & heavy


DEVICES = sorted({module for method in METHODS.values() for module in method.procedures.values()})


# Forks of one process that has PyTorch: to load it anew for each method takes a minute.
LOADED_BY_EACH = """
import importlib, json, os, sys
import torch
for module in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        importlib.import_module(module)
        print(json.dumps([module, sorted(sys.modules)]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, module
"""


@pytest.fixture(scope="module")
def loaded_by():
    """Device module → names of all modules that a process which imports it alone has loaded."""
    command = [sys.executable, "-c", LOADED_BY_EACH, *DEVICES]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return {module: set(names) for module, names in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("module", DEVICES)
def test_a_device_loads_its_own_procedure_and_neither_scipy_nor_another_method(module, loaded_by):
    """Each registered module is there, and importing it brings nothing that a device should not pay for."""
    loaded = loaded_by[module]
    assert module in loaded
    assert not loaded & {
        "scipy",
        "sklearn",
        "matplotlib",
        "bouquet.strategies.base.strategy",
        "bouquet.strategies.registry",
    }
    assert not loaded & (set(DEVICES) - {module})


def test_a_device_is_sent_nothing_that_only_a_server_draws_or_a_simulation_batches():
    from bouquet.common.trust.code import code_files

    sent = {name for name in code_files() if name.endswith(".py")}
    assert len(sent) > 100
    assert [name for name in sent if "batched" in name or "plots" in name] == []


def test_importing_a_package_by_name_gives_its_classes():
    from bouquet import strategies

    for method in METHODS.values():
        name = method.strategy.partition(":")[2]
        assert getattr(strategies, name).__name__ == name
    assert strategies.one_model.__name__ == "one_model"
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = strategies.Nothing


def test_a_tests_name_can_be_read():
    files = [*(ROOT / "tests").rglob("test_*.py")]
    names = {node.name for file in files for node in ast.walk(tree_of(file)) if isinstance(node, ast.FunctionDef)}
    assert [name for name in names if name.startswith("test_") and len(name) > 80] == []
