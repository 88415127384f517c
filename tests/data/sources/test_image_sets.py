import csv
import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from cafedcl.core.errors import CafedclError

HEAD = ["Filename", "Width", "Height", "Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2", "ClassId"]


def image(value, size=(40, 30), form="PPM"):
    out = io.BytesIO()
    Image.new("RGB", size, (value % 256, value // 256, 7)).save(out, form)
    return out.getvalue()


def signs(training="Training"):
    """GTSRB's files by their paths in the official zips: every class twice for training, once for
    testing.
    """
    train = {
        f"GTSRB/{training}/{c:05d}/{track:05d}_00000.ppm": image(c, (20 + c, 25))
        for c in range(43)
        for track in range(2)
    }
    train |= {f"GTSRB/{training}/{c:05d}/GT-{c:05d}.csv": b"Filename;ClassId\n" for c in range(43)}
    test = {f"GTSRB/Final_Test/Images/{i:05d}.ppm": image(42 - i) for i in range(43)}
    test["GTSRB/Final_Test/Images/GT-final_test.test.csv"] = b"x"
    table = io.StringIO()
    rows = [[f"{i:05d}.ppm", 40, 30, 5, 5, 35, 25, 42 - i] for i in range(43)]
    csv.writer(table, delimiter=";").writerows([HEAD, *rows])
    return train, test, {"GT-final_test.csv": table.getvalue().encode()}


def pack(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def unpack(folder, content):
    for name, data in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def write_zips(folder, parts, training="GTSRB-Training_fixed.zip"):
    folder.mkdir(exist_ok=True)
    for name, part in zip(
        (training, "GTSRB_Final_Test_Images.zip", "GTSRB_Final_Test_GT.zip"), parts, strict=True
    ):
        pack(folder / name, part)


def assert_signs(data, size=32):
    assert data.shape == (3, size, size)
    assert torch.bincount(data.train_y).tolist() == [2] * 43
    assert data.train_x[:, 0, 0, 0].tolist() == data.train_y.tolist()
    assert data.test_y.tolist() == list(range(42, -1, -1))
    assert data.test_x[:, 0, 0, 0].tolist() == data.test_y.tolist()


@pytest.mark.parametrize("where", ["", "gtsrb"])
@pytest.mark.parametrize("zipped", ["GTSRB-Training_fixed.zip", "GTSRB_Final_Training_Images.zip"])
def test_gtsrbs_zips_are_read(where, zipped, data_dir, load):
    write_zips(
        data_dir / where,
        signs("Training" if "fixed" in zipped else "Final_Training/Images"),
        zipped,
    )
    assert_signs(load("gtsrb"))
    assert_signs(load("gtsrb", size=16), 16)


@pytest.mark.parametrize(
    ("where", "training"), [("gtsrb", "Training"), ("", "Final_Training/Images")]
)
def test_gtsrbs_folders_are_read_and_a_new_image_noticed(where, training, data_dir, load):
    for part in signs(training):
        unpack(data_dir / where, part)
    assert_signs(load("gtsrb"))
    unpack(data_dir / where, {f"GTSRB/{training}/00007/00009_00000.ppm": image(7)})
    assert len(load("gtsrb").train_y) == 87


def test_what_is_wrong_with_gtsrb(data_dir, load):
    train, test, table = signs()
    name = "GTSRB/Final_Test/Images/00003.ppm"
    write_zips(data_dir, (train, {key: value for key, value in test.items() if key != name}, table))
    with pytest.raises(CafedclError, match=r"1 test images are missing, first 00003.ppm"):
        load("gtsrb")
    write_zips(data_dir, (train, {**test, name: b"P6 broken"}, table))
    with pytest.raises(CafedclError, match=r"00003.ppm cannot be read .*1 broken images in total"):
        load("gtsrb")
    write_zips(data_dir, ({}, test, table))
    with pytest.raises(CafedclError, match="it holds no training images of GTSRB"):
        load("gtsrb")
    write_zips(data_dir, (train, test, {"GT-final_test.csv": b"a;b\n1;2\n"}))
    with pytest.raises(CafedclError, match="not GTSRB's table with Filename and ClassId"):
        load("gtsrb")
    write_zips(data_dir, (train, {**test, "../evil.ppm": b""}, table))
    with pytest.raises(
        CafedclError, match=r"refused: its member '../evil.ppm' lies outside the archive"
    ):
        load("gtsrb")
    write_zips(data_dir, signs())
    for zipped in data_dir.glob("*.zip"):
        whole = zipped.read_bytes()
        zipped.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CafedclError, match=f"{zipped.name}: not a complete archive"):
            load("gtsrb")
        zipped.write_bytes(whole)


def lesions():
    """HAM10000's table and images: 30 lesions of 3 diagnoses, every other one with 2 images."""
    rows = [["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization", "dataset"]]
    images = {}
    for lesion in range(30):
        for view in range(1 + lesion % 2):
            name = f"ISIC_{lesion:03d}{view}"
            rows.append(
                [
                    f"HAM_{lesion}",
                    name,
                    ("nv", "mel", "bcc")[lesion % 3],
                    "histo",
                    "",
                    "male",
                    "back",
                    # The first lesion with two images has them from two places.
                    "vidir_modern" if lesion % 4 == 0 or (lesion, view) == (1, 1) else "rosendahl",
                ]
            )
            images[name] = image(8 * lesion, (60, 45), "PNG")
    table = io.StringIO()
    csv.writer(table).writerows(rows)
    names = sorted(images)
    parts = [{f"{name}.jpg": images[name] for name in half} for half in (names[:20], names[20:])]
    return table.getvalue().encode(), parts


def write_ham(folder, table, parts, zipped):
    folder.mkdir(exist_ok=True)
    (folder / "HAM10000_metadata.csv").write_bytes(table)
    for number, part in enumerate(parts, 1):
        target = folder / f"HAM10000_images_part_{number}"
        if zipped:
            pack(target.with_suffix(".zip"), part)
        else:
            unpack(target, part)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("where", ["", "ham10000"])
def test_ham10000_is_split_by_lesion(zipped, where, data_dir, load):
    write_ham(data_dir / where, *lesions(), zipped)
    data = load("ham10000")
    assert data.names == ("bcc", "mel", "nv")
    assert data.shape == (3, 32, 32)
    assert len(data.train_y) + len(data.test_y) == 45
    lesion = [(x[:, 0, 0, 0].numpy() // 8).tolist() for x in (data.train_x, data.test_x)]
    assert not set(lesion[0]) & set(lesion[1])
    assert np.bincount(np.unique(lesion[1]) % 3).tolist() == [2, 2, 2]
    assert [data.names[c] for c in data.train_y] == [("nv", "mel", "bcc")[i % 3] for i in lesion[0]]
    assert load("ham10000", size=8).shape == (3, 8, 8)
    assert data.group_kind == "lesion"
    assert len(data.groups.unique()) == len(set(lesion[0]))


def test_ham10000_has_the_places_that_images_come_from(data_dir, load):
    table, parts = lesions()
    write_ham(data_dir, table, parts, False)
    data = load("ham10000")
    assert (data.owner_kind, data.owner_names) == ("source", ("rosendahl", "vidir_modern"))
    lesion = data.train_x[:, 0, 0, 0].numpy() // 8
    assert data.owners.tolist() == [int(number % 4 == 0) for number in lesion]
    assert not len(load("ham10000", group="none").groups)
    with pytest.raises(CafedclError, match=r"data.group = age: it is for your own data"):
        load("ham10000", group="age")
    # The first edition of the table does not say where images come from.
    write_ham(data_dir, table.replace(b"dataset", b"unknown"), parts, False)
    assert not len(load("ham10000").owners)


def test_the_middle_square_is_taken(data_dir, load, tmp_path):
    table, parts = lesions()
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    for part in parts:
        for name in part:
            Image.fromarray(wide).save(tmp_path / "x.png")
            part[name] = (tmp_path / "x.png").read_bytes()
    write_ham(data_dir, table, parts, zipped=False)
    assert load("ham10000", size=10).train_x.unique().tolist() == [200]


def test_what_is_wrong_with_ham10000(data_dir, load):
    table, parts = lesions()
    write_ham(data_dir, table, [parts[0], {"other.jpg": b""}], zipped=False)
    with pytest.raises(CafedclError, match=r"images are missing in HAM10000_images_part_1 and"):
        load("ham10000")
    write_ham(data_dir, table.replace(b"dx,", b"dy,"), parts, zipped=False)
    with pytest.raises(CafedclError, match="not HAM10000's table with image_id, lesion_id and dx"):
        load("ham10000")
    write_ham(data_dir, table.replace(b"HAM_2,", b"HAM_1,"), parts, zipped=False)
    with pytest.raises(CafedclError, match="a lesion has two diagnoses"):
        load("ham10000")
