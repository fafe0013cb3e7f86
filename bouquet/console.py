"""Where the commands print. Names, paths and what a device said are text: nothing in them is read as markup."""

from __future__ import annotations

import os

import rich.console


class Console(rich.console.Console):
    """Falls silent when nobody reads any more, as after ``bouquet server | head``: a run goes on without its screen."""

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True
        with open(os.devnull, "wb") as nothing:  # or Python would complain of what it could not write when it ends
            os.dup2(nothing.fileno(), self.file.fileno())


console = Console(markup=False, emoji=False)
errors = Console(stderr=True, markup=False, emoji=False)
