"""``bouquet compare``: a grid of runs, what is measured in them, and what it allows to say."""
