"""Where the commands print. Names, paths and what a device said are text: nothing in them is read as markup."""

from __future__ import annotations

import os
from collections.abc import Iterable

import rich.console
from rich.segment import Segment

from bouquet.common.texts import printable


class Console(rich.console.Console):
    """Falls silent when nobody reads any more, as after ``bouquet server | head``: a run goes on without its screen.

    What steers a terminal is escaped in whatever it prints: names and reasons come from files and other machines.
    """

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The parts of what is printed."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=printable(part.text))

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True
        with open(os.devnull, "wb") as nothing:  # or Python would complain of what it could not write when it ends
            os.dup2(nothing.fileno(), self.file.fileno())


console = Console(markup=False, emoji=False)
errors = Console(stderr=True, markup=False, emoji=False)
