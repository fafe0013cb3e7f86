"""A federation of real processes: starting it, its runs one after another, and the demo."""
