"""What a device runs: the code of its own installation, and what its owner named."""

import io
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.client.trust.policy import CodeRefused, CodeTrust, unpack, unpacked
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.trust.code import archive, digest_of, own_code

FILES = {"client/app.py": b"app = 1\n", "RELEASE": b"bouquet-fl 9\n"}


def packed(entries, kind=zipfile.ZIP_DEFLATED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", kind) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return content.getvalue()


def test_other_code_is_refused_with_its_digest_and_taken_by_its_owners_word():
    other = "1" * 64
    assert CodeTrust().check_code(own_code(), b"", "bouquet-fl 9") == ""
    with pytest.raises(CodeRefused, match=rf"differs \(bouquet-fl 9, 1{{16}}\).*--trust-app {other}\."):
        CodeTrust().check_code(other, b"", "bouquet-fl 9")
    with pytest.raises(CodeRefused):
        CodeTrust(hashes=frozenset({"2" * 64})).check_code(other, b"", "")
    for trust in (CodeTrust(hashes=frozenset({other})), CodeTrust(anything=True)):
        assert trust.check_code(other, b"", "") == ""


def test_code_is_unpacked_and_found_again_as_long_as_it_is_whole(tmp_path):
    code = digest_of(FILES)
    for bundle in (archive(FILES), packed(FILES.items(), zipfile.ZIP_STORED)):
        folder = unpack(bundle, code, tmp_path)
        assert {file: (folder / file).read_bytes() for file in FILES} == FILES
    assert unpacked(code, tmp_path) == folder
    (folder / "sitecustomize.py").write_bytes(b"evil")
    assert unpacked(code, tmp_path) is None
    assert unpacked("3" * 64, tmp_path) is None


def test_of_codes_that_came_few_stay(tmp_path):
    for number in range(5):
        files = {"RELEASE": str(number).encode()}
        last = unpack(archive(files), digest_of(files), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert last.exists()


def bomb(size):
    return packed([*FILES.items(), ("large", bytes(size))])


def lying(size):
    """An archive whose directory says less than what its entry holds."""
    return bomb(size).replace(size.to_bytes(4, "little"), (5).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("bundle", "reason"),
    [
        (bomb(65 * 2**20), "more than 5000 files or 64 MB"),
        (packed((f"empty-{number}", b"") for number in range(5001)), "more than 5000 files or 64 MB"),
        (lying(65 * 2**20), "cannot be read|others than"),
        (packed(FILES.items(), zipfile.ZIP_LZMA), "not packed as ZIP archives usually are"),
        (packed(FILES.items(), zipfile.ZIP_BZIP2), "not packed as ZIP archives usually are"),
        (packed([("../../climbs", b"")]), "others than"),
        (packed([("/etc/climbs", b"")]), "others than"),
        (packed([("a/..b/../../climbs", b"")]), "others than"),
        (packed([*FILES.items(), ("more.py", b"")]), "others than"),
        (packed([("RELEASE", b"bouquet-fl 9\n")]), "others than"),
        (packed(FILES.items())[:-30], "cannot be read"),
        (b"PK\x03\x04", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_a_bundle_that_is_not_what_was_judged_leaves_nothing(tmp_path, bundle, reason):
    with pytest.raises(CodeRefused, match=reason):
        unpack(bundle, digest_of(FILES), tmp_path / "code")
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("name", ["../climbs", "/tmp/climbs", "a/../b", "a\\..\\b", "a\nb", "a//b", ".", "a/"])
def test_a_name_that_climbs_is_refused_whatever_its_digest(tmp_path, name):
    with pytest.raises(CodeRefused):
        unpack(packed([(name, b"x")]), digest_of({name: b"x"}), tmp_path / "code")
    assert not list(tmp_path.rglob("*"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_hides_behind_one_of_the_same_name(tmp_path):
    with pytest.raises(CodeRefused, match="it holds a file twice"):
        unpack(packed([("client/app.py", b"evil"), *FILES.items()]), digest_of(FILES), tmp_path)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
def test_an_archive_with_any_bytes_changed_is_that_code_or_refused(tmp_path_factory, changes):
    bundle, folder = bytearray(archive(FILES)), tmp_path_factory.mktemp("code")
    for at, value in changes:
        bundle[at % len(bundle)] = value
    try:
        found = unpack(bytes(bundle), digest_of(FILES), folder)
    except CodeRefused:
        assert not list(folder.iterdir())
    else:
        assert unpacked(digest_of(FILES), folder) == found


def test_a_model_or_data_set_of_the_owners_is_imported_only_with_their_leave():
    CodeTrust().check_config(Settings().model_dump(mode="json"))
    CodeTrust().check_config({"model": {"name": "torchvision:resnet18"}})  # of models alone that is Bouquet's own
    own, others = frozenset({"mine.code:make"}), frozenset({"os:system"})
    for key, what, option, allows, wrongly in (
        ("model.name", "model", "--allow-model", CodeTrust(models=own), CodeTrust(models=own, data=others)),
        ("task.kind", "task", "--allow-model", CodeTrust(models=own), CodeTrust(models=own, data=others)),
        ("data.dataset", "data set", "--allow-data", CodeTrust(data=own), CodeTrust(data=own, models=others)),
    ):
        section, name = key.split(".")
        allows.check_config({section: {name: "mine.code:make"}})
        CodeTrust(anything=True).check_config({section: {name: "os:system"}})
        with pytest.raises(CodeRefused, match=f"asks for the {what} 'os:system'.*{option} os:system"):
            wrongly.check_config({section: {name: "os:system"}})
        if what != "model":
            with pytest.raises(CodeRefused):
                CodeTrust().check_config({section: {name: "torchvision:resnet18"}})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hashes": frozenset({"ABC"})}, "is no digest of code"),
        ({"models": frozenset({"mlp"})}, "is no model of your own"),
        ({"data": frozenset({"digits"})}, "is no data set of your own"),
        ({"procedures": frozenset({"mine:train"})}, "is no procedure"),
        ({"procedures": frozenset({"mine theirs"})}, "is no procedure"),
        ({"signers": frozenset({"ssh-ed25519 " + "A" * 68})}, "needs a file that remembers"),
    ],
)
def test_what_the_owner_types_wrong(wrong, message):
    with pytest.raises(BouquetError, match=message):
        CodeTrust(**wrong)
