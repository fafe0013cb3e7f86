import codecs

import pytest

from bouquet.common.settings import Settings, SettingsError, load_settings, parse_settings
from bouquet.common.settings.settings import AS_JSON


def test_defaults_are_valid_and_file_then_set_then_options_win(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[train]\nlocal_epochs = 3\nbatch_size = 8\n[strategy]\nname = "fedprox"\nproximal_mu = 0.5\n')
    settings = load_settings(file, ["train.batch_size=4", "strategy.proximal_mu=0.25"], run__seed=7, run__rounds=None)
    assert settings.train.local_epochs == 3
    assert settings.train.batch_size == 4
    assert settings.strategy.options == {"proximal_mu": 0.25}
    assert settings.run.seed == 7
    assert settings.run.rounds == Settings().run.rounds


def test_text_is_read_as_the_type_of_its_key():
    settings = load_settings(
        None,
        [
            "run.name=12",
            "model.hidden=64,32",
            "data.groups=none",
            "data.classes=['a', 'b']",
            "strategy.num_clusters=auto",
            "strategy.candidates=[2, 3]",
            "train.max_gradient_norm=1.5",
        ],
    )
    assert settings.run.name == "12"
    assert settings.model.hidden == (64, 32)
    assert settings.data.groups is None
    assert settings.data.classes == ("a", "b")
    assert settings.strategy.options == {"num_clusters": "auto", "candidates": [2, 3]}
    assert settings.train.max_gradient_norm == 1.5


@pytest.mark.parametrize("name", ["../out", "a/b", ".hidden", "", "a\\b"])
def test_a_runs_name_is_that_of_a_folder(name):
    with pytest.raises(SettingsError, match=r"run\.name = .*name of a folder"):
        parse_settings({"run": {"name": name}}, {})
    assert parse_settings({"run": {"name": "Käse 3"}}, {}).run.name == "Käse 3"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.local_epoch=3", "Unknown setting 'train.local_epoch'; nearest is local_epochs"),
        ("train.local_epochs=x", "Setting train.local_epochs = 'x': input should be a valid integer."),
        ("personal.compare=both", "Setting personal.compare = 'both': input should be true or false."),
        ("train.local_epochs=0", "Setting train.local_epochs = 0: input should be greater than or equal to 1"),
        ("server.min_replies=0", "Setting server.min_replies = 0: input should be a whole number from 1 .*or a number"),
        ("server.min_replies=1.5", "Setting server.min_replies = 1.5: .* at most 1.0 .a share of the clients asked"),
        ("server.min_replies=0.0", "Setting server.min_replies = 0.0: .* above 0"),
        ("privacy.clip_norm=0", "Setting privacy.clip_norm = 0: input should be greater than 0"),
        ("foo.bar=1", "Unknown setting 'foo.bar'; the sections are run, data, task, table, model"),
        ("foo=1", "Unknown setting 'foo'"),
        ("data.partition=bla", "Setting data.partition = 'bla': input should be iid, dirichlet"),
        ("data.dataset=own", "needs data.classes"),
        ("data.drift=[[8, 0.1]]", "data.drift has 0.1 of 10 clients change: two at least"),
        ("data.drift=[[8, 0.5], [4, 0.1]]", "data.drift has rounds 8, 4; each is to come after the one before"),
        ("train", "has no '='"),
    ],
)
def test_a_bad_override_names_key_value_and_what_is_allowed(override, message):
    with pytest.raises(SettingsError, match=message):
        load_settings(None, [override])


def test_bad_files(tmp_path):
    with pytest.raises(SettingsError, match=r"nowhere\.toml cannot be read: No such file"):
        load_settings(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[train\n")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings(broken)
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[trian]\nlocal_epochs = 1\n")
    with pytest.raises(SettingsError, match="Unknown section 'trian'; nearest is train"):
        load_settings(wrong)


def test_run_config_carries_the_same_settings():
    changes = ["data.groups=4", "model.hidden=8,8", "strategy.num_clusters=3", "strategy.weighted_loss=true"]
    changes += ["server.min_replies=1.0"]
    settings = load_settings(None, changes)
    options = '{"num_clusters": 3, "weighted_loss": true}'
    flat = {"data.groups": 4, "model.hidden": "[8, 8]", "strategy.options": options}
    assert Settings.from_run_config({**flat, "server.min_replies": 1.0, "somebody-elses": 1}) == settings
    again = Settings.from_run_config({AS_JSON: settings.model_dump_json(), "data.groups": 5})
    assert again == settings
    assert isinstance(again.server.min_replies, float)  # all of those asked, not one
    with pytest.raises(SettingsError, match=r"strategy\.options = 'num_clusters: 3' is not JSON"):
        Settings.from_run_config({"strategy.options": "num_clusters: 3"})


def test_fingerprint_ignores_what_does_not_change_the_result():
    base = Settings()
    same = load_settings(None, ["run.name=x", "run.rounds=99", "server.round_timeout=5", "simulation.engine=inline"])
    assert same.fingerprint() == base.fingerprint()
    assert load_settings(None, ["run.seed=1"]).fingerprint() != base.fingerprint()
    assert load_settings(None, ["strategy.num_clusters=3"]).fingerprint() != base.fingerprint()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_a_file_is_read_as_editors_save_it(encoding, tmp_path):
    text = '[data]\r\nclasses = ["Möhrenfäule", "rust"]\r\n'
    raw = text.encode(encoding)
    (tmp_path / "a.toml").write_bytes(codecs.BOM_UTF16_LE + raw if encoding == "utf-16-le" else raw)
    assert load_settings(tmp_path / "a.toml").data.classes == ("Möhrenfäule", "rust")
