"""Local training and testing with PyTorch."""
