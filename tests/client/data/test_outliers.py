"""Values that mean something else, and spikes: pointed out, and kept from a column's scale; real extremes are not."""

import numpy as np
import pytest
import torch

from bouquet.client.data.outliers import limits_of
from bouquet.client.data.own import load_table
from bouquet.common.data.scaling import Scaling
from bouquet.common.settings import load_settings
from bouquet.models.kept import Scaled

RNG = np.random.default_rng(0)
LEVEL, TEMP = RNG.normal(60, 5, 400), RNG.normal(15, 2, 400)
SETTINGS = ["task.kind=forecast", "data.dataset=own", "table.inputs=level,temp", "table.targets=level"]
SETTINGS += ["table.time=time", "table.history=6", "table.horizon=4"]


def loaded(folder, level, temp, *more):
    lines = [f"{3600 * i},{a:.2f},{b:.2f}" for i, (a, b) in enumerate(zip(level, temp, strict=True))]
    path = folder / "data.csv"
    path.write_text("\n".join(["time,level,temp", *lines, ""]))
    return load_table(path, load_settings(None, [*SETTINGS, *more]))


def put(values, *pairs):
    """A copy with each value in so many random places of the first 300."""
    values, free = values.copy(), RNG.permutation(300)
    for value, count in pairs:
        values[free[:count]], free = value, free[count:]
    return values


def test_what_is_no_reading_is_pointed_out_and_spoils_no_scale(tmp_path):
    clean = loaded(tmp_path, LEVEL, TEMP)
    assert (clean.notes, clean.scaling.limits, clean.scaling.target_limits) == ((), (), ())
    level, temp = put(LEVEL, (-9999, 8)), put(TEMP, (-127, 12), (85, 4))
    found = loaded(tmp_path, level, temp)
    lines = ", ".join(map(str, np.flatnonzero(level == -9999)[:5] + 2))
    assert found.notes[0].startswith(f"level: 8 cells hold -9999 (lines {lines}, …), which sensors write")
    assert [f"As gaps: table.gaps = ['{gap}']" in note for gap, note in
            zip(("level=-9999", "temp=-127", "temp=85"), found.notes, strict=False)] == [True] * 3  # fmt: skip
    assert found.notes[3].startswith("Scaled by what is not far outside; what is beyond counts as the end: level ")
    np.testing.assert_allclose(found.scaling.std, clean.scaling.std, rtol=0.05)
    np.testing.assert_allclose(found.scaling.target_mean, clean.scaling.target_mean, rtol=0.01)
    assert max(abs(found.train_x).max(), abs(found.train_y).max()) < 12
    with_gaps = loaded(tmp_path, level, temp, "table.gaps=-9999,-127,temp=85")
    assert with_gaps.scaling.limits == ()
    assert len(with_gaps.train_y) < len(found.train_y)


def test_spikes_are_named_with_their_lines(tmp_path):
    level = LEVEL.copy()
    level[[7, 50, 120]] = (5e6, 812.5, -3e6)
    notes = loaded(tmp_path, level, TEMP).notes
    assert "level: 3 cells are far outside of the others, which go from " in notes[0]
    assert "5e+06, 812.5, -3e+06 (lines 9, 52, 122)" in notes[0]


def test_whatever_counts_as_less_has_its_line_named(tmp_path):
    level = LEVEL.copy()
    level[50] = 60 + 15 * np.diff(np.quantile(LEVEL, (0.25, 0.75)))[0]  # 605 where 60.5 lost its point
    found = loaded(tmp_path, level, TEMP)
    assert bool(found.warnings) == bool(found.scaling.target_limits) == any("(line 52)" in note for note in found.notes)
    level[50] *= 3
    assert "far outside" in loaded(tmp_path, level, TEMP).warnings[0]
    assert "(line 52)" in loaded(tmp_path, level, TEMP).notes[0]


@pytest.mark.parametrize(
    ("values", "is_capped"),
    [
        (put(LEVEL, (-9999, 1)), True),
        (put(LEVEL, (-9999, 60)), True),  # unplugged for weeks
        (np.where(RNG.random(400) < 0.03, RNG.normal(500, 20, 400), RNG.normal(2, 0.01, 400)), None),
        (np.repeat([2.0, 500.0, 2.0, 510.0], (180, 12, 200, 8)) + RNG.normal(0, 0.01, 400), False),  # a pump
        (np.where(RNG.random(400) < 0.05, 1.0, 0.0), False),
        (np.where(RNG.random(400) < 0.1, RNG.gamma(0.5, 4, 400), 0), False),  # rain
        (RNG.lognormal(0, 1, 400), False),
        (np.full(400, 7.0), False),
    ],
)
def test_a_scale_leaves_out_what_is_repeated_or_alone(values, is_capped):
    found = limits_of(values)
    if is_capped is not None:
        assert (found is not None) == is_capped
    if found:
        inside = (values >= found[0]) & (values <= found[1])
        assert inside.mean() > 0.8


def test_a_model_that_is_used_caps_its_inputs_as_in_training():
    scaling = Scaling((1.0, 0.0), (2.0, 1.0), limits=(None, (-3.0, 3.0)))
    x = np.array([[5.0, -9999.0], [1.0, 2.0], [-9999.0, 7.0]])
    inputs = scaling.inputs(x)
    np.testing.assert_array_equal(inputs, np.array([[2, -3], [0, 2], [-5000, 3]], dtype=np.float32))
    model = Scaled(torch.nn.Identity(), scaling, (2,))
    np.testing.assert_array_equal(model(torch.as_tensor(x)).numpy(), inputs)
    assert x[0, 1] == -9999
