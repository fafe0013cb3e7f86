"""What a run starts from: the seed's model, or weights from a file."""
