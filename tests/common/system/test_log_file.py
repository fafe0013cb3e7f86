"""Logs that can be left alone."""

import json
import re
from pathlib import Path

import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.system.log_file import KEPT_FILES, LogFile, stamp

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


def test_each_line_has_one_time_and_can_be_json(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(f"{TIME} it began", stamp("it began"))
    assert re.fullmatch(f"{TIME} INFO it began", stamp("2026-11-22T08:53:37.689Z INFO it began"))
    monkeypatch.setenv("BOUQUET_LOG", "json")
    said = json.loads(stamp('it "began"', "SuperLink"))
    assert (said["source"], said["text"]) == ("SuperLink", 'it "began"')
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d$", said["time"])


def test_a_log_is_turned_over(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", largest=1000)
    for number in range(200):
        log.write(f"line {number}")
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + KEPT_FILES
    assert all(file.stat().st_size <= 1000 for file in files)
    assert (tmp_path / "a.log").read_text().endswith("line 199\n")


def test_a_folder_that_cannot_be_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BouquetError, match=r"folder of a log, .*file/below, cannot be made: Not a directory"):
        LogFile(tmp_path / "file" / "below" / "a.log")
