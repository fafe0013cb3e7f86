"""The program ``bouquet``, as a user calls it, in this process."""

import sys

import pytest

from bouquet.cli import main


@pytest.fixture
def bouquet(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bouquet", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, " ".join(said.err.split())

    return run
