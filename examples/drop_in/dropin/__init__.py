"""A plain Flower app: nothing in it but the strategy is Bouquet's."""
