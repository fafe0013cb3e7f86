"""The committed stubs are what protoc makes of `fleet.proto`."""

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from bouquet.common.wire import fleet_pb2

ROOT = Path(__file__).parents[3]


def described(folder, *options):
    """What protoc reads in the file."""
    made = folder / "fleet.binpb"
    assert (
        protoc.main(
            ["protoc", f"-I{ROOT}", f"--descriptor_set_out={made}", *options, "bouquet/common/wire/fleet.proto"]
        )
        == 0
    )
    (file,) = FileDescriptorSet.FromString(made.read_bytes()).file
    return file


def test_the_committed_stubs_are_made_of_the_file(tmp_path):
    file = described(tmp_path)
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")  # the stubs do without
    assert file.SerializeToString() == fleet_pb2.DESCRIPTOR.serialized_pb


def test_the_types_for_mypy_name_every_message_and_field():
    stub = (ROOT / "common/wire/fleet_pb2.pyi").read_text()
    for message in fleet_pb2.DESCRIPTOR.message_types_by_name.values():
        part = stub.partition(f"class {message.name}(")[2].partition("\nclass ")[0]
        assert [f.name for f in message.fields if f"    {f.name}: " not in part] == []
