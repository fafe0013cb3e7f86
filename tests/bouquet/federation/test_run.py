"""What devices are told of a run."""

import shutil

from bouquet.common.settings import load_settings
from bouquet.federation.run import run_of


def test_a_new_run_in_the_place_of_one_that_was_removed_is_another(tmp_path):
    """Else devices of a run without an end, which have done their rounds, would rest from its first one on."""
    folder = tmp_path / "run"

    def identity():
        folder.mkdir(exist_ok=True)
        return run_of(load_settings(None, []), folder, tmp_path, None).id

    first = identity()
    assert identity() == first
    shutil.rmtree(folder)
    assert identity() not in (first, 0)
