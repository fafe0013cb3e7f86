"""What the machine has."""

import pytest

from bouquet.common.system import resources


@pytest.mark.parametrize(
    ("said", "idle"),
    [("0.10 0.2 0.3 1/200 42", 4), ("9.9 9.9 9.9 3/200 42", 2), ("0 0 0 9/200 42", 1), ("", 4), ("0 0 0 x/y 1", 4)],
)
def test_idle_cores_are_those_on_which_nothing_else_runs(tmp_path, monkeypatch, said, idle):
    monkeypatch.setattr(resources, "available_cores", lambda: 4)
    (tmp_path / "loadavg").write_text(said)
    assert resources.idle_cores(tmp_path / "loadavg") == idle
    assert resources.idle_cores(tmp_path / "nothing") == 4
