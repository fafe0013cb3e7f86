"""The settings file of the pages is what `bouquet init` writes for such photos, and it trains."""

import json
import re
from pathlib import Path

from bouquet.begin.draft import draft_text
from bouquet.begin.look import look
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from examples.photos.make_photos import write_photos

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]


def test_the_pages_plants_are_what_init_writes_and_they_train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "plants")
    text = draft_text(look(Path("plants")), "bouquet init plants")
    shown = {page.name: re.findall(r"```toml\n(# plants\.toml.*?)```", page.read_text(), re.DOTALL) for page in PAGES}
    copies = {name: found for name, found in shown.items() if found}
    assert "your-data.md" in copies
    assert copies == {name: [text] for name in copies}
    Path("plants.toml").write_text(text)
    summary = simulate(load_settings(Path("plants.toml")), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [line["failed"] for line in lines] == [{}] * len(lines)
    assert summary["accuracy_macro"] > 0.8  # guessing: a third
    assert lines[-1]["loss"] < 0.3 < lines[0]["loss"]
    # It begins slowly, and twelve photos of a class are learned by heart before the last round: both are said.
    of_the_loss = ("no better than guessing", "stands still")
    assert all(any(said in warning for said in of_the_loss) for warning in summary["warnings"]), summary["warnings"]
