"""Where the commands print."""

import subprocess
import sys

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
