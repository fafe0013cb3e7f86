"""Which procedures a device runs: Bouquet's, and of other packages those that its owner allows."""

import sys
import textwrap

import pytest

from bouquet.client.procedures.registry import procedure
from bouquet.client.trust.policy import ALLOWED_PROCEDURES, CodeTrust, allowed_procedures
from bouquet.common import methods
from bouquet.common.errors import BouquetError

PACKAGE = """
    from bouquet.common.methods import Method

    METHOD = Method("own_method_for_test.strategy:Own", procedures={"own-steps": "own_method_for_test.device"})
    NO_METHOD = 3
"""


@pytest.fixture(autouse=True)
def outside(tmp_path, monkeypatch):
    """An installed package with a procedure; beside it one whose entry point is broken."""
    package = tmp_path / "own_method_for_test"
    package.mkdir()
    (package / "__init__.py").write_text(textwrap.dedent(PACKAGE))
    (package / "device.py").write_text("train = evaluate = print\n")
    (package / "half.py").write_text("train = print\n")
    (package / "broken.py").write_text("1 / 0\n")
    (package / "needs.py").write_text("import no_such_module\n")
    information = tmp_path / "own_method_for_test-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-method-for-test\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[bouquet.methods]\nnowhere = no_such_module:METHOD\nnumber = own_method_for_test:NO_METHOD\n"
        "own = own_method_for_test:METHOD\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    methods.outside_methods.cache_clear()
    yield
    methods.outside_methods.cache_clear()
    for name in [name for name in sys.modules if name.startswith("own_method_for_test")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["own-steps", "own_method_for_test.device"])
def test_another_packages_procedure_runs_with_the_owners_leave_only(name):
    with pytest.raises(BouquetError, match=f"asks for the procedure '{name}'; .* --allow-procedure {name}"):
        procedure(name)
    assert "own_method_for_test" not in sys.modules  # not even imported
    with pytest.raises(BouquetError, match="--allow-procedure"):
        procedure(name, {"own_method_for_test.strategy"})
    assert procedure(name, {name}).__name__ == "own_method_for_test.device"
    assert procedure(name, {"own_method_for_test.device"}).__name__ == "own_method_for_test.device"
    assert procedure(name, None).__name__ == "own_method_for_test.device"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_method_for_test.half", r"lacks the function evaluate\(session\)"),
        ("own_method_for_test.broken", "cannot be imported: ZeroDivisionError"),
        ("own_method_for_test.needs", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("own_method_for_test.nowhere", "neither a name that a package installed here offers .* nor a module"),
        ("nowhere.at.all", "neither a name that a package installed here offers .* nor a module"),
        ("unknown", "The entry point 'nowhere' of bouquet.methods cannot be loaded"),
    ],
)
def test_one_that_does_not_work_is_named(name, message):
    with pytest.raises(BouquetError, match=message):
        procedure(name, {name})


def test_what_is_allowed_reaches_the_clientapp():
    trust = CodeTrust(procedures=frozenset({"own-steps", "pack.age"}))
    assert trust.node_config == {ALLOWED_PROCEDURES: "own-steps pack.age"}
    assert allowed_procedures("own-steps pack.age") == {"own-steps", "pack.age"}
    assert allowed_procedures("") == frozenset()
    assert allowed_procedures(CodeTrust(anything=True).node_config[ALLOWED_PROCEDURES]) is None
    assert CodeTrust().node_config == {}


def test_a_method_by_its_entry_point_and_one_that_cannot_be_loaded():
    assert methods.find_method("own").procedures == {"own-steps": "own_method_for_test.device"}
    with pytest.raises(BouquetError, match=r"'nowhere' of bouquet\.methods cannot be loaded: No module named"):
        methods.find_method("nowhere")
    with pytest.raises(BouquetError, match=r"'number' .* is a int; it must be a bouquet\.common\.methods\.Method"):
        methods.find_method("number")
    with pytest.raises(BouquetError, match=r"there are fesem, .*nowhere, number, own, or your own"):
        methods.find_method("nothing")
