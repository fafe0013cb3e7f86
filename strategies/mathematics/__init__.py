"""Mathematics that methods share: pure functions on arrays, NumPy in and NumPy out."""
