"""The names of records, keys and metrics in a message."""

from __future__ import annotations

from flwr.app.typing import ConfigRecordValues

VERSION = 1

ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
CLIENT = "client"

NUM_EXAMPLES = "num-examples"
CLIENT_ID = "client-id"
ROUND = "server-round"
IDENTIFY = "query.identify"
NOTICE = "query.notice"  # the server has something to say to the device's owner, in its log
TEXT = "text"

# What a device says of itself beside its name, when it is asked who it is.
DEVICE_ID = "device-id"  # of its state folder; stays when its name changes
RELEASE = "release"  # of Bouquet
CAPABILITIES = "capabilities"  # of a ClientApp that is not Bouquet's own (`bouquet.common.protocol.capabilities`)
REFUSES = "refuses"  # why the device's owner lets it take no part in the run
TAGS = "tags"  # what its owner calls it by, for runs that choose by them
CONDITIONS = "conditions"  # there when its owner says when it may work: it is asked before it is chosen
NOT_NOW = "not-now"  # why it does not work now
AGAIN_IN = "again-in"  # seconds, after which it is to be asked again

# By class, of a device whose owner lets it say so: how many samples it holds, how many it tests, and how many of
# these the model that it was sent gets right.
CLASS_SAMPLES = "class-samples"
CLASS_TESTED = "class-tested"
CLASS_FOUND = "class-found"
DATA_WARNINGS = "data-warnings"  # what a device finds odd about its data, without a value of them
UNKNOWN_CLASSES = "unknown-classes"  # folders of the device's photos that are none of the run's classes

# Metrics a Bouquet device reports, all optional for the server.
LOSS = "loss"  # mean training loss of the model it started from, before training
TRAIN_LOSS = "train-loss"  # mean loss over the mini-batches of the last local epoch
TEST_EXAMPLES = "test-examples"
ACCURACY = "accuracy"  # on its test part, with the model it started from
F1 = "f1"
NAIVE = "naive"  # the score, where a task has no classes, of the best that is foretold without a model
TEST_LOSS = "test-loss"
GROUP = "group"  # true group where the partition has one, else -1
STATE_LOST = "state-lost"  # 1 when it was to continue from layers that it no longer has
LEFT_OUT = "left-out"  # photos or rows that could not be read
TEMPERATURE = "temperature"  # °C of the device's hottest thermal zone
BATTERY = "battery"  # share of its charge, from 0 to 1
TRAIN_SECONDS = "train-seconds"  # that local SGD took, where the server gives the steps
VALIDATION_EXAMPLES = "validation-examples"

# Of a device that chooses among the models of all clusters: how their records' names begin, and what it reports.
CENTER = "center-"
CHOSEN = "cluster"  # metric: the cluster that it chose
LOSS_GAP = "loss-gap"  # metric: between the worst and the best of the models that it compared
RIVAL = "rival"  # record with the model that a device would have in another cluster, to be judged beside its own
JUDGED = "rival-does-better"  # key of the reply's config: 1 where the device errs less with it, -1 where more, else 0
LOOK = "look"  # key of both configs: asks what the samples look like; 256 bytes (`bouquet.common.data.looks`)

STANDARD = "standard"  # the procedure that most methods need
CHOOSE = "choose"  # the one of a device that is to say which cluster's model fits it
BACKBONE = (
    "backbone"  # record with what the device keeps of the model beside what travels (`bouquet.strategies.base.filters`)
)
INITIAL = "initial-model"  # record with the model that the run begins with, for a device that cannot build it
FALLBACK = "fallback"  # record with layers for a device that may have lost its own; else they are not used

VERSION_KEY = "bouquet-protocol"
RUN = "run-id"
START = "start"
PROCEDURE = "procedure"
UPLOAD = "upload"
ANCHORS = "proximal-anchors"
WEIGHTS = "proximal-weights"
FLOWER_PROXIMAL = "proximal-mu"  # the key of flwr's FedProx
VALIDATION_FRACTION = "validation-fraction"
LOCAL_STEPS = "local-steps"  # after which local training ends, also within an epoch
NEWCOMER = "newcomer"
BACKBONE_DIGEST = "backbone"

Scalar = ConfigRecordValues
