import os
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from common.errors import BouquetError
from common.trust.app_bundle import PACKAGES, app_files, fab_hash, own_app_files, package_folder, write_app

CONFIG = {"rounds": 3, "name": 'a "quoted" \\ name', "strategy": {"k": 4, "weight": 0.5, "fixed": True}}


def test_the_app_holds_the_installed_packages_and_nothing_else(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", app_files(CONFIG))
    laid_out = {file.relative_to(app).as_posix() for file in app.rglob("*") if file.is_file()}
    expected = {
        f"{package}/{file.relative_to(package_folder(package)).as_posix()}"
        for package in PACKAGES
        for file in package_folder(package).rglob("*.py")
    }
    assert laid_out == expected | {"pyproject.toml", ".bouquet-app"}
    assert "common/errors.py" in laid_out
    assert (app / "common/errors.py").read_bytes() == (package_folder("common") / "errors.py").read_bytes()


def test_pyproject(tmp_path: Path) -> None:
    project = tomllib.loads((write_app(tmp_path / "app", app_files(CONFIG)) / "pyproject.toml").read_text())
    assert project["project"]["name"] == "bouquet-fl"
    assert project["project"]["dependencies"] == []
    app = project["tool"]["flwr"]["app"]
    assert app["publisher"] == "bouquet"
    assert app["components"] == {"serverapp": "server.app:app", "clientapp": "client.app:app"}
    assert app["config"] == CONFIG


def test_flower_accepts_it_without_a_warning(tmp_path: Path) -> None:
    _, warnings = load_and_validate(write_app(tmp_path / "app", app_files(CONFIG)) / "pyproject.toml")
    assert warnings == []


def test_the_bundle_holds_the_files_and_flowers_manifest_and_nothing_else(tmp_path: Path) -> None:
    files = own_app_files()
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(write_app(tmp_path / "app", files)))) as bundle:
        assert {name: bundle.read(name) for name in bundle.namelist() if name != ".info/CONTENT"} == files
    assert tomllib.loads(files["pyproject.toml"].decode())["tool"]["flwr"]["app"]["config"]["run"]["rounds"] == 10


def test_same_code_and_config_give_the_same_hash(tmp_path: Path) -> None:
    first = write_app(tmp_path / "one", app_files(CONFIG))
    second = write_app(tmp_path / "deeper" / "two", app_files(dict(reversed(CONFIG.items()))))
    os.utime(second / "pyproject.toml", (0, 0))
    assert fab_hash(first) == fab_hash(second)
    assert fab_hash(write_app(tmp_path / "three", app_files({**CONFIG, "rounds": 4}))) != fab_hash(first)


def test_an_earlier_app_is_replaced(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", app_files({"old": 1}))
    (app / "common" / "left_over.py").touch()
    write_app(app, app_files({"new": 1}))
    assert not (app / "common" / "left_over.py").exists()
    assert fab_hash(app) == fab_hash(write_app(tmp_path / "other", app_files({"new": 1})))


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BouquetError, match=r"holds other files; the Flower app needs an empty folder"):
        write_app(tmp_path, app_files({}))
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"strategy": {"k": None}}, r"'strategy\.k' is None \(NoneType\)"),
        ({"k": [1, 2]}, r"'k' is \[1, 2\] \(list\)"),
        ({"a b": 1}, r"'a b' has a name that"),
        ({"a.b": 1}, r"'a\.b' has a name that"),
    ],
)
def test_config_that_flower_cannot_hold(config: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(BouquetError, match=message):
        write_app(tmp_path / "app", app_files(config))
    assert not (tmp_path / "app").exists()


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(BouquetError, match="'no_such_package' is not installed"):
        package_folder("no_such_package")
