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


def test_every_message_field_and_value_is_explained(tmp_path):
    file = described(tmp_path, "--include_source_info")
    said = {
        tuple(location.path): location.leading_comments + location.trailing_comments
        for location in file.source_code_info.location
    }
    places = {}
    for i, message in enumerate(file.message_type):
        places[message.name] = (4, i)
        if not message.name.endswith("Frame"):  # whose fields are messages, and explained as such
            places |= {f"{message.name}.{field.name}": (4, i, 2, j) for j, field in enumerate(message.field)}
        for j, enum in enumerate(message.enum_type):
            places |= {f"{message.name}.{value.name}": (4, i, 4, j, 2, k) for k, value in enumerate(enum.value)}
    assert len(places) > 50
    assert [name for name, place in places.items() if not said.get(place, "").strip()] == []
