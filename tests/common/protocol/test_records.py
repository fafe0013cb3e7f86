"""Records of a message's content by kind: found, left as they are, and no more than Flower's own views find."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from bouquet.common.protocol.records import config_of, records_of


def content() -> RecordDict:
    return RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))}),
            "metrics": MetricRecord({"loss": 0.5}),
            "config": ConfigRecord({"round": 3}),
            "client": ConfigRecord({"client-id": "a"}),
        }
    )


def test_records_of_one_kind_in_order_as_flowers_views_have_them() -> None:
    found = content()
    assert list(records_of(found, ConfigRecord)) == ["config", "client"]
    assert records_of(found, ArrayRecord) == dict(found.array_records)
    assert records_of(found, MetricRecord) == dict(found.metric_records)
    assert records_of(found, ConfigRecord)["config"] is found["config"]


def test_the_config_of_a_name_is_empty_where_there_is_none() -> None:
    assert config_of(content(), "config")["round"] == 3
    assert dict(config_of(content(), "nothing")) == {}
    assert dict(config_of(content(), "metrics")) == {}  # of another kind
