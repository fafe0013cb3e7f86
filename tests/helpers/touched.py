"""The test files and folders of the rooms that differ from a commit: what `make check` runs.

python tests/helpers/touched.py [COMMIT]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALWAYS = ["tests/test_architecture.py"]


def mirrors_of(changed: list[str]) -> list[str]:
    """The tests of changed files: a changed test itself, else those that mirror the nearest room of the file."""
    found = dict.fromkeys(ALWAYS)
    for name in changed:
        path = Path(name)
        if path.parts[0] == "tests":
            if path.name.startswith("test_") and path.suffix == ".py" and (ROOT / path).exists():
                found[name] = None
        elif path.suffix == ".py" and (ROOT / "tests" / path.parts[0]).is_dir():
            own = Path("tests") / path.parent / f"test_{path.name}"
            found[str(own if (ROOT / own).exists() else _room(own.parent))] = None
        elif path.suffix == ".md":
            found["tests/test_docs.py"] = None
    return list(found)


def _room(folder: Path) -> Path:
    """The nearest folder of tests that there is."""
    return folder if (ROOT / folder).is_dir() else _room(folder.parent)


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


if __name__ == "__main__":
    since = _git("merge-base", "HEAD", sys.argv[1] if len(sys.argv) > 1 else "main")[0]
    print(*mirrors_of([*_git("diff", "--name-only", since), *_git("ls-files", "--others", "--exclude-standard")]))
