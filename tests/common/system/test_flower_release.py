import pytest
from packaging.specifiers import SpecifierSet
from typer.testing import CliRunner

from bouquet.cli import app
from bouquet.federation.start import start_server
from common.errors import BouquetError
from common.system import flower_release
from common.system.flower_release import REQUIREMENT, TESTED, is_tested
from common.system.process_group import ProcessGroup


@pytest.mark.parametrize(
    ("installed", "tested"),
    [
        *((f"{one}{patch}", True) for one in TESTED for patch in (".0", ".7")),
        (f"{TESTED[0]}0.0", False),
        ("1.99.0", False),
    ],
)
def test_any_patch_release_of_the_tested_flower_will_do(monkeypatch, installed, tested):
    monkeypatch.setattr(flower_release, "version", lambda name: installed)
    assert is_tested() is tested


def test_what_is_to_be_installed_is_what_is_tested():
    allowed = SpecifierSet(REQUIREMENT.removeprefix("flwr"))
    assert [f"1.{minor}" for minor in range(100) if f"1.{minor}.3" in allowed] == [*TESTED]


def test_the_server_refuses_an_untested_flower_and_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(flower_release, "version", lambda name: "1.99.0")
    with ProcessGroup() as group, pytest.raises(BouquetError, match=rf"1\.99\.0 is installed.*'{REQUIREMENT}'"):
        start_server(group, tmp_path / "run", port=1)
    assert list(tmp_path.iterdir()) == []


def test_the_client_refuses_an_untested_flower_before_all_else(monkeypatch, tmp_path):
    monkeypatch.setattr(flower_release, "version", lambda name: "1.99.0")
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["client", "--server", "127.0.0.1:1", "--insecure", "--partition-id", "0"])
    assert isinstance(said.exception, BouquetError)
    assert "Flower 1.99.0 is installed" in str(said.exception)
    assert list(tmp_path.iterdir()) == []
