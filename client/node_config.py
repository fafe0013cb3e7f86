"""Keys of a device's node config. Nothing is imported with them: the agent reads them, too."""

DATA = "data"
STATE_DIR = "state-dir"
NAME = "name"
PARTITION_ID = "partition-id"
STRICT = "strict"  # nothing is left out of its data
LEAST_NOISE = "least-noise"
MOST_EPSILON = "most-epsilon"
REPORT_CLASSES = "report-classes"
WHEN = "when"  # the owner's file of conditions
THREADS = "threads"
TAGS = "tags"  # separated by commas
NUM_PARTITIONS = "num-partitions"
