"""A federation's keys, certificates and signatures."""
