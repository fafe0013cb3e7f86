from tests.helpers.touched import ALWAYS, mirrors_of


def test_a_change_is_tested_by_what_mirrors_it():
    assert mirrors_of(["common/data/partitions.py"]) == [*ALWAYS, "tests/common/data/test_partitions.py"]
    assert mirrors_of(["client/mod.py", "docs/methods.md"]) == [
        *ALWAYS,
        "tests/client/test_mod.py",
        "tests/test_docs.py",
    ]
    assert mirrors_of(["strategies/fesem/state.py"]) == [*ALWAYS, "tests/strategies/fesem"]
    assert mirrors_of(["tests/helpers/points.py", "tests/test_gone.py", "Makefile"]) == ALWAYS
