"""What every method is made of: its contract, and the Flower side of it."""
