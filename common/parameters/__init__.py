"""A model's parameters as one flat vector of float32, and back."""
