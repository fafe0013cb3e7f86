"""``python -m bouquet``."""

from bouquet.cli import main

main()
