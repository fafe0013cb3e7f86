"""The arrows of the house: which package may import which."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "common": set(),
    "strategies": {"common"},
    "client": {"common"},
    "server": {"common", "strategies"},
    "experiments": {"common", "strategies", "client", "server"},
    "bouquet": {"common", "strategies", "client", "server", "experiments"},
}


def imported(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_it_may(package):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[package] - {package}
    wrong = {str(file.relative_to(ROOT)): found for file in files if (found := forbidden & set(imported(file)))}
    assert wrong == {}


def test_strategies_are_pure_numpy():
    wrong = [file.name for file in (ROOT / "strategies").rglob("*.py") if "torch" in set(imported(file))]
    assert wrong == []


def test_importing_a_package_by_name_gives_its_classes():
    import strategies

    assert strategies.FeSEM.__name__ == "FeSEM"
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = strategies.Nothing
