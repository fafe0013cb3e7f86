"""What is wrong with a run, told from its record."""
