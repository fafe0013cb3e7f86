"""Where the commands print."""

import io
import re
import subprocess
import sys

import pytest
from rich.table import Table
from rich.text import Text

from bouquet.common.texts import CONTROLS
from bouquet.console import Console

PRINTS = """
import sys
from bouquet.console import console
console.print("one")
input()
console.print("two")
console.print("three")
sys.stderr.write("went on")
"""


def test_a_command_goes_on_where_nobody_reads_its_screen_any_more():
    with subprocess.Popen(
        [sys.executable, "-c", PRINTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "one\n"
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate("\n")
    assert (process.returncode, said) == (0, "went on")


@pytest.mark.parametrize("shown", [str, Text, lambda text: Text(text, style="red")])
def test_nothing_that_is_printed_steers_the_terminal(shown):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", markup=False, emoji=False)
    said = "name\x1b]0;owned\x07\x1b[2J\r\u202e\x9b31m"
    table = Table()
    table.add_column(shown(said))
    table.add_row(shown(said))
    for what in (shown(said), table):
        console.print(what, soft_wrap=True)
    written = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())  # Rich's own colours
    assert not CONTROLS.search(written), written
    assert "name" in written
