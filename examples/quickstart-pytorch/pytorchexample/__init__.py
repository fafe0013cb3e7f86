"""Flower's PyTorch quickstart with FeSEM in the place of FedAvg."""
