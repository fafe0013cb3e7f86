"""Photos as they are: what cameras, editors, phones and file servers leave in a folder costs nobody the others."""

import contextlib
import io
import os
import struct
import unicodedata
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from benchmarks.damaged_files import exif
from bouquet.common.data.images import DEEP, DIM, EMPTY, IMAGE_SUFFIXES, TORN, files_below, read_image, read_photo
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from tests.helpers.photos import CLASSES, SHAPE, count, load, save, scene

SIDEWAYS = (0x0112, 3, 1, struct.pack("<I", 6))


ODD = {
    "a resolution of -1/0": (0x011A, 10, 1, struct.pack("<ii", -1, 0)),
    "text where numbers are due": (0x0111, 2, 2, b"a\0"),
    "a directory that is nowhere": (0x8769, 4, 1, struct.pack("<I", 4_000_000_000)),
    "a date of no month": (0x0132, 2, 20, b"2026:77:99 99:99:99\0"),
    "more values than there are": (0x0100, 4, 1 << 30, struct.pack("<I", 8)),
    "a value that is nowhere": (0x0110, 2, 40, struct.pack("<I", 4_000_000_000)),
}


@pytest.mark.parametrize("written", [(1, "<B"), (3, "<H"), (4, "<I")])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_photo_is_upright_whichever_whole_number_says_how_it_was_held(written, kind, tmp_path):
    upright = np.kron([[250, 10, 10], [10, 10, 10]], np.ones((16, 16))).astype(np.uint8)
    held = exif((0x0112, written[0], 1, struct.pack(written[1], 6)))
    Image.fromarray(np.rot90(upright)).save(tmp_path / "a.jpg", kind, exif=held)
    assert (read_image(tmp_path / "a.jpg", (1, 2, 3)) > 128).tolist() == [[[True, False, False], [False] * 3]]


def test_what_is_transparent_has_white_behind_it_and_is_said(tmp_path):
    files = save(tmp_path)
    clear = np.zeros((4, 4, 4), np.uint8)
    clear[:2, :, 3] = 255
    Image.fromarray(clear).save(files[0])
    Image.fromarray(np.full((4, 4, 4), 255, np.uint8)).save(files[1])  # an alpha that hides nothing
    assert read_image(files[0], (3, 4, 4))[0, :, 0].tolist() == [0, 0, 255, 255]
    note = "Look at 1 photos, such as healthy/000.png: white is put behind what is transparent."
    assert note in load(tmp_path).notes


def test_sixteen_bits_become_eight_and_thirty_two_are_named(tmp_path):
    file = tmp_path / "deep.png"
    Image.fromarray(np.full((4, 4), 0x80FF, np.uint16)).save(file)
    assert read_image(file, (1, 4, 4)).ravel().tolist() == [128] * 16
    assert read_image(file, SHAPE)[:, 0, 0].tolist() == [128] * 3
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(BouquetError, match=r"float\.tiff cannot be read \(it has 32 bits a channel"):
        read_image(tmp_path / "float.tiff", SHAPE)


@pytest.mark.parametrize(("bits", "used"), [(10, 10), (12, 12), (14, 14), (16, 16), (8, 10)])
def test_a_camera_of_fewer_bits_than_sixteen_is_not_dark(bits, used, tmp_path):
    file = tmp_path / "deep.png"
    Image.fromarray(np.linspace(0, (1 << bits) - 1, 16).reshape(4, 4).astype(np.uint16)).save(file)
    photo = read_photo(file, (1, 4, 4))
    assert photo.pixels.max() == 255 >> used - bits
    assert photo.odd == (() if bits == 16 else (DEEP,))


def test_sixteen_bits_of_colour_that_are_few_are_said(tmp_path):
    """Pillow gives the upper eight of them."""
    values = np.linspace(0, 4095, 48).reshape(4, 4, 3).astype(">u2")
    data = b"".join(b"\0" + row.tobytes() for row in values)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    parts = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    assert DIM in read_photo(tmp_path / "deep.png", (3, 4, 4)).odd


def test_a_jpeg_that_lost_a_part_is_named_wherever_that_was(tmp_path):
    rng = np.random.default_rng(0)
    pixels = np.asarray(Image.fromarray(rng.integers(0, 255, (60, 80, 3)).astype(np.uint8)).resize((640, 480)))
    files = save(tmp_path, count=30, suffix=".jpg")
    for kind, how in {
        "plain": {},
        "progressive": {"progressive": True},
        "restarts": {"restart_marker_rows": 4},
    }.items():
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", **how)
        whole = buffer.getvalue()
        assert read_jpeg(files[0], whole).odd == ()
        assert read_jpeg(files[0], whole + bytes(4096)).odd == ()  # a camera's buffer, longer than the photo
        middle = len(whole) // 2
        assert read_jpeg(files[0], whole[:middle] + bytes(2048) + whole[middle + 2048 :]).odd == (TORN,), kind
        if kind != "progressive":  # of which the other scans are still there
            assert read_jpeg(files[0], whole[:middle] + b"\xff\xd9").odd == (TORN,), kind
            assert read_jpeg(files[0], whole[:middle] + whole[-2:]).odd == (TORN,), kind
    for flat in (0, 128, 255):  # an optimised coder has a bit for each block of one colour
        Image.new("RGB", (640, 480), (flat,) * 3).save(files[0], optimize=True)
        assert read_photo(files[0], SHAPE).odd == (EMPTY,)
    (notes,) = [note for note in load(tmp_path).notes if EMPTY in note]
    assert notes.startswith("Look at 1 photos, such as healthy/000.jpg")


def read_jpeg(file, content):
    file.write_bytes(content)
    return read_photo(file, SHAPE)


@pytest.mark.parametrize("suffix", [".jfif", ".mpo", ".JPG"])
def test_a_photo_of_a_phone_is_read(suffix, tmp_path):
    more = {"save_all": True, "append_images": [Image.fromarray(scene(2))]} if suffix == ".mpo" else {}
    save(tmp_path)
    Image.fromarray(scene(1)).save(tmp_path / "healthy" / f"a{suffix}", "MPO" if more else "JPEG", **more)
    assert (count(load(tmp_path)), load(tmp_path).notes) == (9, ())


def test_a_photo_starts_no_other_program(tmp_path, monkeypatch):
    """Pillow has Ghostscript run the PostScript of an EPS, whatever its file is called."""
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    postscript = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "a.jpg").write_text(postscript)
    with pytest.raises(BouquetError, match="it is no image of a kind that is read"):
        read_image(tmp_path / "a.jpg", SHAPE)
    assert not (tmp_path / "ran").exists()


def unreadable(folder):
    """Files of which each is wrong in its way, by what is said of it."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = io.BytesIO()
    Image.fromarray(scene(9)).save(whole, "JPEG")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.png").write_bytes(b"no image")
    (folder / "half.jpg").write_bytes(whole.getvalue()[:-200])
    (folder / "nowhere.jpg").symlink_to(folder / "gone" / "photo.jpg")
    (folder / "circle.jpg").symlink_to(folder / "circle.jpg")
    os.mkfifo(folder / "pipe.jpg")
    wide = bytearray(whole.getvalue())
    place = wide.index(b"\xff\xc0")
    wide[place + 5 : place + 9] = struct.pack(">HH", 65_000, 65_000)
    (folder / "bomb.jpg").write_bytes(wide)
    return {
        "empty.jpg": "no image",
        "text.png": "no image",
        "half.jpg": "truncated",
        "nowhere.jpg": "No such file",
        "circle.jpg": "symbolic links",
        "pipe.jpg": "it is no file",
        "bomb.jpg": "pixels",
    }


@pytest.mark.timeout(300)  # a pipe that is opened waits for ever
def test_each_file_that_cannot_be_read_is_named_and_left_out(tmp_path):
    save(tmp_path, count=140)
    said = unreadable(tmp_path / "healthy")
    own = load(tmp_path)
    assert (own.left_out, count(own)) == (len(said), 140)
    (note,) = [note for note in own.notes if note.startswith("Left out")]
    assert note.startswith("Left out: 7 of 147 photos.")
    for name, reason in said.items():
        with pytest.raises(BouquetError, match=rf"{name} cannot be read \(.*{reason}"):
            read_image(tmp_path / "healthy" / name, SHAPE)
        assert f"/{name} cannot be read" in note
    with pytest.raises(BouquetError, match=r"bomb\.jpg cannot be read .*Nothing is left out.*--strict"):
        load(tmp_path, strict=True)
    readable = sorted({*(tmp_path / "healthy").glob("*.png")} - {tmp_path / "healthy" / "text.png"})
    for file in readable[:9]:
        file.unlink()
    with pytest.raises(BouquetError, match=r"7 of 138 photos cannot be read, and at most 5% are left out") as caught:
        load(tmp_path)
    assert caught.value.public == "7 of 138 photos cannot be read on this device."


def test_a_large_image_is_refused_where_there_is_no_memory_for_it(tmp_path, monkeypatch):
    Image.new("L", (4000, 3000)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", SHAPE).shape == SHAPE
    monkeypatch.setattr("bouquet.common.data.images.available_bytes", lambda: 150_000_000)
    with pytest.raises(BouquetError, match="its pixels take 192 MB, and 150 MB are free"):
        read_image(tmp_path / "a.png", SHAPE)
    Image.new("1", (9500, 9500)).save(tmp_path / "b.png")
    with pytest.raises(BouquetError, match=r"b\.png cannot be read \(it has 90250000 pixels, and 90000000 are allowed"):
        read_image(tmp_path / "b.png", SHAPE)
    Image.new("L", (9500, 9500)).save(tmp_path / "a.jpg")
    assert read_image(tmp_path / "a.jpg", SHAPE).shape == SHAPE  # decoded at a fraction of its size


def test_folders_in_circles_and_folders_called_like_photos(tmp_path):
    photos, elsewhere = tmp_path / "photos", tmp_path / "elsewhere"
    save(photos)
    (photos / "healthy" / "again").symlink_to(photos / "healthy")
    (photos / "healthy" / "up").symlink_to(photos)
    save(photos / "healthy", "of-may.jpg", seed=20, count=2)
    save(elsewhere, "june", seed=30, count=3)
    (photos / "healthy" / "june").symlink_to(elsewhere / "june")
    assert count(load(photos)) == 8 + 2 + 3
    assert len(list(files_below(photos))) < 40


@pytest.mark.skipif(os.getuid() == 0, reason="root may look into everything")
def test_a_folder_that_may_not_be_looked_into_is_left_out(tmp_path):
    save(tmp_path)
    save(tmp_path, "rust", seed=50)[0].parent.chmod(0)
    try:
        own = load(tmp_path)
    finally:
        (tmp_path / "rust").chmod(0o700)
    assert own.left_out == 1
    assert any("The folder" in note and "rust cannot be read" in note for note in own.notes)


def test_a_class_is_the_same_however_its_accents_are_kept(tmp_path):
    apart = unicodedata.normalize("NFD", CLASSES[1])
    assert apart != CLASSES[1]
    save(tmp_path, apart, count=4)
    save(tmp_path, CLASSES[1], seed=10, count=4)  # another folder on Linux
    assert load(tmp_path).samples_by_class() == [0, 8, 0]
    chosen = load_settings(None, [f'data.classes=["a", "{apart}"]', "data.input_shape=[3,8,8]", "data.dataset=own"])
    assert chosen.data.classes == ("a", CLASSES[1])


def test_the_same_photo_in_two_classes_is_said(tmp_path):
    (file, *_) = save(tmp_path)
    save(tmp_path, "rust", seed=30)
    (tmp_path / "rust" / "copy.png").write_bytes(file.read_bytes())
    notes = load(tmp_path).notes
    assert "In two classes: 1 photos, such as healthy/000.png, which is rust/copy.png, too." in notes


def photo_bytes(kind):
    buffer = io.BytesIO()
    more = {"exif": exif(SIDEWAYS, *ODD.values())} if kind in ("JPEG", "PNG", "WEBP") else {}
    Image.fromarray(scene(1)).save(buffer, kind, **more)
    return buffer.getvalue()


WHOLE = {kind: photo_bytes(kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM")}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(sorted(WHOLE)), st.lists(st.tuples(st.integers(0, 600), st.binary(min_size=1, max_size=4))))
def test_nothing_but_our_own_error_leaves_a_photo(tmp_path, kind, flips):
    damaged = bytearray(WHOLE[kind])
    for place, with_ in flips:
        damaged[place : place + len(with_)] = with_
    file = tmp_path / f"damaged{IMAGE_SUFFIXES[0]}"
    file.write_bytes(damaged)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning of Pillow's is another thing that it may raise
        with contextlib.suppress(BouquetError):
            assert read_photo(file, SHAPE).pixels.shape == SHAPE
