"""What devices are told of a run."""

import shutil

from bouquet.common.settings import load_settings
from bouquet.federation.run import run_of


def test_a_run_is_the_same_after_a_restart_and_another_one_where_its_folder_was_removed(tmp_path):
    """Else devices of a run without an end, which have done their rounds, would rest from its first one on."""
    folder = tmp_path / "run"

    def identity():
        folder.mkdir(exist_ok=True)
        return run_of(load_settings(None, []), folder, tmp_path, None).id

    first = identity()
    assert identity() == first
    shutil.rmtree(folder)
    assert identity() not in (first, 0)
