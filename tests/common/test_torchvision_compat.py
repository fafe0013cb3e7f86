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
REFUSED = "refused: The installed torchvision does not work beside torch "
PROGRAM = """
import os, sys
import torch
from bouquet.common.errors import BouquetError
from bouquet.common.torchvision_compat import import_torchvision

for folder in sys.argv[1:]:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    sys.path.insert(0, folder)
    try:
        print("came from", import_torchvision().__file__, torch.ops.torchvision.nms, flush=True)
    except BouquetError as error:
        print("refused:", str(error).replace(chr(10), " "), flush=True)
    os._exit(0)
"""
# The package, its extension, and what is said.
RELEASES = {
    "0.29, whose `_C_stable` declares the operators itself": (SHAPES, LOADS, "came from FOLDER"),  # twice ends it
    "no extension loads, and they are declared": (SHAPES, "", "came from FOLDER"),
    "an error": ("raise RuntimeError('made for another torch')", "", "RuntimeError: made for another torch"),
    "no such name": ("from torch import not_there", "", "ImportError: cannot import name 'not_there'"),
    "no such operator": (SHAPES + "torch.library.register_fake('torchvision::other')(len)", "", "torchvision::other"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a program says that imports each of them; all are forked from one that has imported PyTorch."""
    folders = [tmp_path_factory.mktemp("release") for _ in RELEASES]
    for folder, (package, extension, _) in zip(folders, RELEASES.values(), strict=True):
        (folder / "torchvision").mkdir()
        (folder / "torchvision" / "__init__.py").write_text(package)
        (folder / "torchvision" / "extension.py").write_text(extension)
    done = subprocess.run([sys.executable, "-c", PROGRAM, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [
        line.replace(str(folder), "FOLDER") for line, folder in zip(done.stdout.splitlines(), folders, strict=True)
    ]
    return dict(zip(RELEASES, lines, strict=True))


@pytest.mark.parametrize("release", RELEASES)
def test_a_torchvision_works_or_is_refused_in_a_sentence(said, release):
    expected = RELEASES[release][2]
    assert said[release].startswith("came from FOLDER" if expected.startswith("came") else REFUSED)
    assert expected in said[release]
