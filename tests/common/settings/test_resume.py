"""What may change when a run goes on."""

from pathlib import Path

import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings, load_settings, section_class
from bouquet.common.settings.resume import MAY_CHANGE, check_continues


def content(*changes: str) -> dict:
    return load_settings(None, changes).model_dump(mode="json")


def test_every_key_of_the_list_is_a_setting() -> None:
    known = {f"{section}.{key}" for section in Settings.model_fields for key in section_class(section).model_fields}
    known |= {f"{section}.*" for section in Settings.model_fields}
    assert set(MAY_CHANGE) <= known


def test_the_page_for_owners_has_the_list() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operating.md").read_text()
    assert [key for key, why in MAY_CHANGE.items() if f"| `{key}` | {why} |" not in page] == []


def test_a_run_whose_device_died_goes_on() -> None:
    """Also for more rounds, on another machine."""
    changes = ("server.min_clients=4", "server.min_replies=2", "run.rounds=30", "train.device=cpu", "train.threads=4")
    check_continues(content("server.min_clients=5"), content(*changes, "simulation.engine=inline"), "runs/plants")
    first, second = (load_settings(None, [f"server.min_clients={n}"]) for n in (4, 5))
    assert first.fingerprint() == second.fingerprint()


def test_what_may_not_change_is_named_with_its_old_and_new_value() -> None:
    old = content("strategy.num_clusters=3")
    new = content("train.learning_rate=0.2", "model.name=cnn-dcpfl", "strategy.init=random")
    with pytest.raises(BouquetError) as error:
        check_continues(old, new, "runs/plants")
    said = str(error.value)
    assert said.startswith("The run in runs/plants cannot go on with other settings: ")
    for change in (
        'model.name was "mlp", now "cnn-dcpfl"',
        'strategy.init was not set, now "random"',
        "strategy.num_clusters was 3, now not set",
        "train.learning_rate was 0.05, now 0.2",
    ):
        assert change in said
