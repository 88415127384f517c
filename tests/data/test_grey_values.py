"""Images with more than 8 bits: windows, DICOM and TIFF."""

import io
import os
import struct
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from cafedcl.config.data_options import DataOptions
from cafedcl.config.options import read_options
from cafedcl.core.errors import CafedclError
from cafedcl.data.grey_values import WHOLE_16_BITS, GreyValues, Window, to_levels
from cafedcl.data.images import read_images
from cafedcl.federation.predictions import find_images

VALUES = np.arange(256, dtype=np.uint16).reshape(16, 16)


@pytest.fixture
def folder(tmp_path):
    """Write images of 12 bits in files of 16, as scanners do."""

    def make(ending="png", kind=np.uint16):
        for label in "ab":
            (tmp_path / "own" / label).mkdir(parents=True)
            for i in range(4):
                pixels = (VALUES * 16 + i + 4 * (label == "b")).astype(kind)
                pixels[i, 8 * (label == "b")] = 1000
                Image.fromarray(pixels).save(tmp_path / "own" / label / f"{i}.{ending}")
        return tmp_path / "own"

    return make


@pytest.mark.parametrize(
    ("ending", "kind"), [("png", np.uint16), ("tif", np.uint16), ("tiff", np.float32)]
)
def test_no_grey_level_is_lost_without_a_word(ending, kind, folder, load, capsys):
    data = load(folder(ending, kind))
    # The upper 8 of 16 bits would leave 16 of these 256 levels.
    assert len(data.train_x[0].unique()) > 250
    low, high = data.window
    assert 0 <= low < 20
    assert 4070 < high < 4096
    assert "8 images have more than 8 bits per pixel; values" in capsys.readouterr().err


def test_a_window_is_chosen(folder, load, capsys):
    data = load(folder(), window="0,2040")
    assert data.window == (0.0, 2040.0)
    first = data.train_x[0, 0].flatten()
    assert int(first.min()) < 5
    assert (first == 255).sum() in (127, 128)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("window", ["wide", "5,5", "9,1", "1,2,3", "0,inf", ""])
def test_a_window_that_is_none_is_refused(window):
    with pytest.raises(CafedclError, match="auto, LOW,HIGH or auto:LOW,HIGH is expected, such"):
        read_options(DataOptions, {"window": window}, "data")


def test_a_window_changes_nothing_of_images_of_8_bits_and_says_so(tmp_path, load, paint, capsys):
    """No error: one site may have such images, and another one of the same run others."""
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        paint(tmp_path / "own" / name)
    plain = load(tmp_path / "own")
    found = load(tmp_path / "own", window="0,9")
    assert torch.equal(found.train_x, plain.train_x)
    said = "data.window = 0,9 changes nothing: no image has more than 8 bits"
    assert said in capsys.readouterr().err


def test_arrays_have_a_window_too(tmp_path, load):
    x = np.random.default_rng(0).integers(-1000, 1000, (20, 4, 4)).astype(np.int16)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(20) % 2)
    with pytest.raises(CafedclError, match=r"set data.window = LOW,HIGH"):
        load(tmp_path / "own.npz")
    data = load(tmp_path / "own.npz", window="-160,240")
    found = torch.cat([data.train_x, data.test_x])
    assert int(((found > 0) & (found < 255)).sum()) == int(((x > -160) & (x < 240)).sum())


def test_levels_are_even_and_ends_are_clipped():
    levels = to_levels(np.array([-5.0, 0.0, 50.0, 100.0, 1e9, np.nan]), (0.0, 100.0))
    assert levels.tolist() == [0, 0, 128, 255, 255, 0]


def test_an_image_to_predict_is_read_as_in_training(tmp_path):
    path = tmp_path / "x.png"
    Image.fromarray(VALUES * 16).save(path)
    seen = read_images([path], (1, 16, 16), Window((0.0, 4080.0)))
    assert seen.flatten().tolist() == list(range(256))
    with pytest.raises(CafedclError, match="no window says which values are black and white"):
        read_images([path], (1, 16, 16), Window())
    old = read_images([path], (1, 16, 16), WHOLE_16_BITS)
    assert int(old.max()) == 16


def test_colour_images_of_16_bits_are_told(tmp_path, load, capsys):
    # Pillow writes no such file: 2×2 pixels, 16 bits, RGB.
    def chunk(kind, body):
        crc = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + crc

    rows = b"".join(b"\0" + bytes(12) for _ in range(2))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0))
    png += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        path = tmp_path / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png)
    load(tmp_path / "own")
    assert "4 colour images have 16 bits per channel; the upper 8 are used" in (
        capsys.readouterr().err
    )


def dicom_bytes(pixels, **fields):
    """Return a DICOM file with an image."""
    pydicom = pytest.importorskip("pydicom")
    content = pydicom.Dataset()
    content.file_meta = pydicom.dataset.FileMetaDataset()
    content.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    content.file_meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    content.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    content.SOPClassUID = pydicom.uid.CTImageStorage
    content.SOPInstanceUID = "1.2.3"
    content.Rows, content.Columns = pixels.shape[-2:]
    content.SamplesPerPixel = 1
    content.PhotometricInterpretation = "MONOCHROME2"
    content.BitsAllocated = 16
    content.BitsStored = 16
    content.HighBit = 15
    content.PixelRepresentation = 0
    content.PixelData = pixels.astype("<u2").tobytes()
    for name, value in fields.items():
        setattr(content, name, value)
    out = io.BytesIO()
    content.save_as(out, enforce_file_format=True)
    return out.getvalue()


@pytest.fixture
def scans(tmp_path):
    def make(**fields):
        for label in "ab":
            (tmp_path / "scans" / label).mkdir(parents=True, exist_ok=True)
            for i in range(4):
                content = dicom_bytes(VALUES * 8 + i + 4 * (label == "b"), **fields)
                (tmp_path / "scans" / label / f"{i}.dcm").write_bytes(content)
        return tmp_path / "scans"

    return make


def test_dicom_images_are_rescaled_and_windowed(scans, load, capsys):
    data = load(scans(RescaleSlope=1, RescaleIntercept=-1024), window="-1024,1016")
    assert data.shape == (1, 16, 16)
    assert abs(int(data.train_x[0].flatten()[128]) - 128) <= 1
    data = load(scans(RescaleSlope=1, RescaleIntercept=-1024))
    assert -1025 < data.window[0] < -1000
    assert "8 images have more than 8 bits" in capsys.readouterr().err


def test_a_dicom_file_may_have_its_own_window(scans, load, capsys):
    data = load(scans(WindowCenter=[1020, 5], WindowWidth=[1020, 5]))
    assert data.window == ()
    first = data.train_x[0].flatten()
    assert (int(first[0]), int(first[-1])) == (0, 255)
    assert 60 < int((first == 0).sum()) < 70
    assert "each by its own window" in capsys.readouterr().err


def test_files_with_and_without_a_window_of_their_own_are_counted(scans, load, capsys):
    folder = scans()
    own = dicom_bytes(VALUES * 8, WindowCenter=1020, WindowWidth=1020)
    (folder / "a" / "0.dcm").write_bytes(own)
    load(folder)
    said = " ".join(capsys.readouterr().err.split())
    assert "8 images have more than 8 bits per pixel; values " in said
    assert "become 256 grey levels, but 1 by the window in their file" in said


def test_a_window_without_numbers_is_none(scans, load):
    path = scans()
    odd = dicom_bytes(VALUES * 8, WindowCenter="9" * 16, WindowWidth="1e999")
    (path / "a" / "0.dcm").write_bytes(odd)
    data = load(path)
    assert all(len(image.unique()) > 200 for image in [*data.train_x, *data.test_x])


def test_dicom_files_need_no_ending_and_their_directory_is_no_image(scans, load):
    path = scans()
    for file in sorted(path.rglob("*.dcm")):
        file.rename(file.with_suffix(""))
    (path / "DICOMDIR").write_bytes(dicom_bytes(VALUES))
    (path / "a" / "notes").write_text("no image")
    data = load(path)
    assert len(data.train_y) + len(data.test_y) == 8
    assert [file.name for file in find_images([path / "a"])] == ["0", "1", "2", "3"]


def test_a_palette_gives_colours(scans, load):
    table = np.array([0, 65535, 0x80FF], "<u2").tobytes()
    colours = {
        f"{colour}PaletteColorLookupTable{part}": value
        for colour in ("Red", "Green", "Blue")
        for part, value in (("Descriptor", [3, 0, 16]), ("Data", table))
    }
    colours["GreenPaletteColorLookupTableData"] = np.zeros(3, "<u2").tobytes()
    path = scans()
    indices = np.arange(256).reshape(16, 16) % 3
    image = dicom_bytes(indices, PhotometricInterpretation="PALETTE COLOR", **colours)
    (path / "a" / "0.dcm").write_bytes(image)
    pixels = read_images([path / "a" / "0.dcm"], (3, 16, 16))[0]
    assert pixels[:, 0, :3].T.tolist() == [[0, 0, 0], [255, 0, 255], [128, 0, 128]]
    assert load(path).shape == (3, 16, 16)


@pytest.mark.parametrize("missing", ["Rows", "BitsStored", "PixelRepresentation"])
def test_a_damaged_file_to_predict_is_one_line(missing, tmp_path):
    (tmp_path / "x.dcm").write_bytes(dicom_bytes(VALUES, **{missing: None}))
    with pytest.raises(CafedclError, match=r"x\.dcm: cannot be read: "):
        read_images([tmp_path / "x.dcm"], (1, 16, 16))


def test_low_values_may_be_bright(scans, load):
    data = load(scans(PhotometricInterpretation="MONOCHROME1"), window="0,2040")
    assert int(data.train_x[0].flatten()[0]) == 255


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"NumberOfFrames": 3}, "a DICOM file of 3 frames"), ({"PixelData": None}, "scans/a|a/x.dcm")],
)
def test_other_dicom_files_are_skipped_and_named(fields, words, scans, load, capsys):
    path = scans()
    (path / "a" / "x.dcm").write_bytes(dicom_bytes(VALUES, **fields))
    assert len(load(path).train_y) == 6
    warning = capsys.readouterr().err
    assert "1 of 9 images cannot be read: a/x.dcm (" in warning
    with pytest.raises(CafedclError, match=words):
        load(path, strict=True)


def test_without_pydicom_one_line_says_how_to_get_it(scans, load, monkeypatch):
    path = scans()
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(CafedclError, match="pydicom is not installed; install the extra dicom"):
        load(path)


def test_an_image_without_a_number_has_no_range():
    with pytest.raises(ValueError, match="no pixel is a finite number"):
        GreyValues(np.full((2, 2), np.nan)).range()


def test_in_a_tiff_white_may_be_0(tmp_path):
    path = tmp_path / "x.tif"
    Image.fromarray(VALUES * 16).save(path, tiffinfo={262: 0})
    found = read_images([path], (1, 16, 16), Window((0.0, 4095.0)))[0, 0].numpy()
    expected = 255 - np.round(VALUES * (16 * 255 / 4095))
    assert np.abs(found.astype(int) - expected).max() == 0


@pytest.mark.parametrize("most", [300, 4095, 32767, 65535])
def test_a_pgm_has_the_values_of_its_file(most, tmp_path):
    path = tmp_path / "x.pgm"
    values = np.linspace(0, most, 256).astype(np.uint16).reshape(16, 16)
    path.write_bytes(f"P5 16 16 {most}\n".encode() + values.astype(">u2").tobytes())
    found = read_images([path], (1, 16, 16), Window((0.0, 200.0)))[0, 0].numpy()
    expected = np.clip(np.round(values * (255 / 200)), 0, 255)
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_a_grey_run_reads_colour_files_as_its_training_did(tmp_path, load):
    """Resized in colours, then grey: the other order gives other pixels."""
    rng = np.random.default_rng(0)
    for i in range(8):
        colours = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
        path = tmp_path / "own" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(colours).save(path)
    data = load(tmp_path / "own", colours="grey", size=8)
    files = find_images([tmp_path / "own"])
    found = read_images(files, data.shape)
    trained = {image.numpy().tobytes() for image in torch.cat([data.train_x, data.test_x])}
    assert {image.numpy().tobytes() for image in found} == trained


def test_linked_folders_are_searched_but_not_in_circles(tmp_path, paint):
    paint(tmp_path / "far" / "1.png")
    paint(tmp_path / "own" / "2.png")
    (tmp_path / "own" / "link").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "back").symlink_to(tmp_path / "own")
    found = find_images([tmp_path / "own"])
    assert [path.name for path in found] == ["2.png", "1.png"]


@pytest.mark.parametrize(
    ("name", "content", "reduced"),
    [
        ("x.bmp", None, False),
        ("x.ppm", b"P6 8 8 255\n" + bytes(192), False),
        ("x.ppm", b"P6 8 8 65535\n" + bytes(384), True),
    ],
)
def test_only_16_bits_per_channel_are_called_so(name, content, reduced, tmp_path, load, capsys):
    for label in "ab":
        for i in range(4):
            path = tmp_path / "own" / label / f"{i}{name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                # The rows of a BMP of this width are 164 bytes long.
                Image.new("RGB", (54, 8), (i, 0, 0)).save(path)
            else:
                path.write_bytes(content)
    load(tmp_path / "own")
    assert ("16 bits per channel" in capsys.readouterr().err) is reduced


def test_an_empty_path_and_a_pipe_are_no_images(tmp_path):
    with pytest.raises(CafedclError, match="an empty path names no image"):
        find_images([""])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CafedclError, match="pipe: it is neither a file nor a folder"):
        find_images([tmp_path / "pipe"])
