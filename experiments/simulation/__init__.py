"""A federation on one machine: the engines, and devices with data of their own."""
