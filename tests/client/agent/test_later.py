"""Packages that are not read before something of them is used."""

import subprocess
import sys

BEGIN = """
import inspect, sys
from pathlib import Path
from bouquet.client.agent.later import Later
folder = Path(sys.argv[1], "made")
(folder / "part").mkdir(parents=True)
(folder / "__init__.py").write_text("from . import part as part")
(folder / "part" / "__init__.py").write_text(
    "import builtins; builtins.read = getattr(builtins, 'read', 0) + 1\\n"
    "from .one import One\\nfrom .two import Two\\n__all__ = ['One']"
)
(folder / "part" / "one.py").write_text("from made.part import two\\nclass One: pass")
(folder / "part" / "two.py").write_text("class Two: pass")
sys.path.insert(0, sys.argv[1])
sys.meta_path.insert(0, Later(["made.part"]))
import made
inspect.getmodule(sys._getframe())
assert not hasattr(__builtins__, "read")
"""


def run(code, tmp_path):
    command = [sys.executable, "-c", f"{BEGIN}\n{code}\nassert __builtins__.read == 1", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_a_package_is_read_when_something_of_it_is_used(tmp_path):
    run("assert made.part.One is sys.modules['made.part.one'].One; assert not hasattr(made.part, 'nothing')", tmp_path)


def test_its_names_and_all_of_them_can_be_imported(tmp_path):
    run("from made.part import Two; from made.part import *; assert One is made.part.One", tmp_path)


def test_a_module_of_it_is_there_once(tmp_path):
    run("from made.part.one import One; import made.part.one as one; assert made.part.One is One is one.One", tmp_path)
