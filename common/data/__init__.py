"""The data sets by name, their files, and how samples are shared among clients."""
