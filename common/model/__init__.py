"""The models by name, what the seed makes of them, frozen layers, and the card of a model that is kept."""
