"""What both ends of a federation share: settings, parameter layout, wire protocol, models, partitions, metrics."""
