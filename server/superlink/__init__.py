"""Flower's SuperLink as a program of ours; the server's only room that touches private Flower."""
