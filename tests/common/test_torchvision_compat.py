"""torchvision of any release, beside any torch: made-up releases in the place of the installed one."""

import subprocess
import sys

import pytest

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# As torchvision begins: load the extension, which declares the operators, then say what shapes they give.
SHAPES = """
import torch, torch.library
from . import extension
for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{name}")(lambda dets, scores, iou_threshold: dets.new_empty(0))
"""
LOADS = f"""
import torch
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{{name}}", "{SCHEMA}")
"""


def imported(folder, package, extension):
    """What a program says that imports a torchvision of these two files."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(package)
    (folder / "torchvision" / "extension.py").write_text(extension)
    program = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "import torch\n"
        "from bouquet.common.errors import BouquetError\n"
        "from bouquet.common.torchvision_compat import import_torchvision\n"
        "try:\n"
        "    print('came from', import_torchvision().__file__, torch.ops.torchvision.nms)\n"
        "except BouquetError as error:\n"
        "    print('refused:', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_extension_of_any_name_declares_its_operators_itself(tmp_path):
    """0.29 calls it `_C_stable`; a second declaration ends the process."""
    assert f"came from {tmp_path}" in imported(tmp_path, SHAPES, LOADS)


def test_operators_are_declared_where_no_extension_loads(tmp_path):
    assert f"came from {tmp_path}" in imported(tmp_path, SHAPES, "")


@pytest.mark.parametrize(
    ("package", "says"),
    [
        ("raise RuntimeError('made for another torch')", "RuntimeError: made for another torch"),
        ("from torch import not_there", "ImportError: cannot import name 'not_there'"),
        (SHAPES + "torch.library.register_fake('torchvision::other')(len)", "torchvision::other"),
    ],
)
def test_a_torchvision_that_does_not_fit_is_refused_in_a_sentence(tmp_path, package, says):
    said = imported(tmp_path, package, "")
    assert said.startswith("refused: The installed torchvision does not work beside torch ")
    assert says in said
