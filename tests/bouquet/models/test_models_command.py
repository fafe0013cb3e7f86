"""``bouquet models`` and ``bouquet rollback`` of a run, as they are typed."""

import json

from bouquet.server.record.status import FINISHED
from bouquet.server.record.versions import save_versions
from bouquet.server.run_folder import STATUS, VERSIONS
from tests.server.record.test_versions import method


def test_a_damaged_model_is_named_and_a_run_that_is_over_is_said_to_be(bouquet, write_run):
    run = write_run(rounds=3)
    assert "keeps none: no round has begun, or it is a simulation" in bouquet("models", run)[2]
    for round_ in (1, 2, 3):
        save_versions(run, method([round_, 0]), round_)
    (run / VERSIONS / "000001-0.safetensors").write_bytes(b"half")
    (run / STATUS).write_text(json.dumps({"state": FINISHED}))
    _, listed, _ = bouquet("models", str(run))
    assert [line.split()[0] for line in listed.splitlines()] == ["1.0", "2.0", "3.0"]
    assert listed.splitlines()[0].endswith("damaged")
    _, asked, _ = bouquet("rollback", str(run), "--cluster", "0")
    assert "begin its next round with version 2.0; the run is finished: that is when it goes on (--resume)" in asked


def test_a_run_that_goes_on_names_the_clusters_that_it_has(bouquet, write_run):
    run = write_run(rounds=1)
    save_versions(run, method([1, 0], [1, 1]), 1)
    (run / "summary.json").unlink(missing_ok=True)
    status, _, said = bouquet("predict", "x", "--run", run, "--cluster", 7)
    assert (status, "the run has clusters 0, 1" in said) == (2, True)
