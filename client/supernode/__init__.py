"""The programs around Flower's SuperNode on a device; the client's only room that touches private Flower."""
