"""Where the commands print. Names, paths and what a device said are text: nothing in them is read as markup."""

from __future__ import annotations

from rich.console import Console

console = Console(markup=False, emoji=False)
errors = Console(stderr=True, markup=False, emoji=False)
