import pickle
import sys
import zipfile
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch

from cafedcl.core.errors import CafedclError


@pytest.fixture
def table(tmp_path, paint):
    """Write a table of ten images; columns are given as lists or by a function of the number."""

    def make(name="list.csv", n=10, text=None, **columns):
        for i in range(n):
            paint(tmp_path / "images" / f"{i}.png", i)
        path = tmp_path / name
        columns = {"path": lambda i: f"images/{i}.png", "label": lambda i: "ab"[i % 2]} | columns
        values = {
            key: [c(i) for i in range(n)] if callable(c) else c
            for key, c in columns.items()
            if c is not None
        }
        path.write_text(text if text is not None else pd.DataFrame(values).to_csv(index=False))
        return path

    return make


def test_paths_and_labels(table, load):
    data = load(table())
    assert data.names == ("a", "b")
    assert (data.train_x[:, 0, 0, 0] % 2 == data.train_y).all()
    assert torch.bincount(data.test_y).tolist() == [1, 1]
    assert data.owner_names == ()


@pytest.mark.parametrize("path", ["image", "file", "filename", "Path", "FILENAME "])
@pytest.mark.parametrize("label", ["class", "Label"])
def test_other_names_of_columns(path, label, table, load):
    columns = {path: lambda i: f"images/{i}.png", label: lambda i: "ab"[i % 2], "age": lambda i: i}
    missing = {name: None for name in ("path", "label") if name not in columns}
    assert len(load(table(**columns, **missing)).train_y) == 8


def test_clients_and_split(table, load):
    data = load(
        table(client=lambda i: f"clinic {i % 3}", split=lambda i: "test" if i > 7 else "Train")
    )
    assert data.owner_names == ("clinic 0", "clinic 1", "clinic 2")
    assert (data.train_x[:, 0, 0, 0] % 3 == data.owners).all()
    assert data.test_x[:, 0, 0, 0].tolist() == [8, 9]
    assert len(data.owners) == len(data.train_y) == 8


def test_a_fifth_is_held_out_within_clients(table, load):
    data = load(table(n=40, client=lambda i: i % 4))
    assert len(data.test_y) == 8
    assert torch.bincount(data.owners).tolist() == [8, 8, 8, 8]


def test_validation_rows_stay_out_or_serve_as_test(table, load, capsys):
    data = load(table(split=lambda i: ["train", "val", "test"][min(i // 4, 2)]))
    assert (len(data.train_y), len(data.test_y)) == (4, 2)
    assert "4 validation images are left out" in capsys.readouterr().err
    data = load(table(split=lambda i: "train" if i < 8 else "validation"))
    assert (len(data.train_y), len(data.test_y)) == (8, 2)


def test_labels_stay_text(table, load):
    assert load(table(label=lambda i: ["NA", "007"][i % 2])).names == ("007", "NA")
    assert load(table(label=lambda i: [10, 9][i % 2])).names == ("9", "10")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"path": None},
            "there is no column path or image or file or filename; its columns are: label",
        ),
        ({"label": None}, "there is no column label or class; its columns are: path"),
        ({"label": lambda i: "" if i == 3 else "a"}, "line 5 has no label"),
        (
            {"path": lambda i: f"images/{i % 9 if i < 9 else 'x'}.png"},
            r"1 of 10 images are missing, first images/x.png",
        ),
        (
            {"split": lambda i: "maybe" if i else "train"},
            "split 'maybe' in line 3 is not train or test",
        ),
        ({"split": lambda i: "test"}, "there are no training images"),
        ({"client": lambda i: "" if i == 4 else "k"}, "line 6 has no client"),
        (
            {"client": lambda i: ["K", "k"][i % 2]},
            "the client names 'K' and 'k' differ only by case or blanks",
        ),
        ({"client": lambda i: ["k", "k "][i % 2]}, "differ only by case or blanks"),
        (
            {
                "client": lambda i: "late" if i > 7 else "k",
                "split": lambda i: "test" if i > 7 else "train",
            },
            "client 'late' has no training image",
        ),
        (
            {
                "label": lambda i: "c" if i == 9 else "a",
                "split": lambda i: "test" if i > 7 else "train",
            },
            "class 'c' has no",
        ),
        (
            {"path": lambda i: f"images/{i % 9}.png", "label": lambda i: "aaab"[i % 9 % 4]},
            "0.png is listed twice, in lines 2 and 11; keep one of them",
        ),
        (
            {"path": lambda i: f"images/{i % 9}.png"},
            "0.png has two labels, 'a' and 'b', in lines 2 and 11",
        ),
        (
            {
                "path": lambda i: "images/../images/0.png" if i == 8 else f"images/{i}.png",
                "split": lambda i: "test" if i > 7 else "train",
            },
            "0.png is in train and in test, in lines 2 and 10",
        ),
        (
            {"text": 'path,label\n\n"images/0.png","a"\n\nimages/1.png,"two\nlines"\n,b\n'},
            "line 7 has no path",
        ),
        ({"text": ""}, "it is empty; a table has a head"),
        ({"text": "path,label\na.png,x\nb.png,x,y\n"}, "line 3 has 3 values, but there are 2 col"),
        ({"text": "path,label\n"}, "the table has no rows"),
        ({"text": 'path,label\n"x'}, "not a readable table"),
        (
            {"text": "path,label\n../../etc/passwd,a\n"},
            "1 of 1 images are missing|cannot be read",
        ),
    ],
)
def test_a_table_that_does_not_fit_says_why(columns, words, table, load):
    with pytest.raises(CafedclError, match=words) as caught:
        load(table(**columns))
    assert "\n" not in str(caught.value)


def test_a_table_in_another_encoding_is_one_line(table, load):
    path = table()
    path.write_bytes("path,label\nö.png,a\n".encode("latin1"))
    with pytest.raises(CafedclError, match="save it as CSV in UTF-8"):
        load(path)


def test_parquet_needs_pyarrow_or_says_so(table, load, monkeypatch):
    frame = pd.read_csv(table())
    path = table("list.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setattr("cafedcl.data.own.tables.pd.read_parquet", lambda _: frame)
    assert len(load(path).train_y) == 8

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CafedclError, match="reading Parquet: pyarrow is not installed; install"):
        load(path)


@pytest.mark.parametrize("image", [b"\x89PNG", {"bytes": b"\x89PNG", "path": "a.png"}])
def test_a_table_of_images_is_refused_without_printing_them(image, table, load, monkeypatch):
    frame = pd.DataFrame({"image": [image] * 4, "label": ["a", "b"] * 2})
    monkeypatch.setattr("cafedcl.data.own.tables.pd.read_parquet", lambda _: frame)
    path = table("list.parquet")
    path.touch()
    with pytest.raises(CafedclError, match="column 'image' holds images") as refused:
        load(path)
    assert "PNG" not in str(refused.value)


def test_a_real_parquet_file(table, load):
    pytest.importorskip("pyarrow")
    path = table("list.parquet")
    frame = pd.read_csv(table())
    frame.to_parquet(path)
    assert len(load(path).train_y) == 8


class Column:
    def __init__(self, names=None):
        self.names = names


class Part:
    """As much of a Hugging Face data set as is used."""

    def __init__(self, rows, names=("x", "y")):
        self.rows = rows
        self.features = {"image": Column(), "label": Column(list(names) if names else None)}
        self.features |= {"client": Column()} if "client" in rows[0] else {}

    def cast_column(self, name, feature):
        assert (name, feature) == ("image", "undecoded")
        return self

    def __iter__(self):
        return iter(self.rows)


@pytest.fixture
def hub(monkeypatch, tmp_path, paint):
    """Stand in for the package datasets, and return where its answer is put."""

    class Datasets:
        answer = None
        asked = None

        @staticmethod
        def Image(decode):  # noqa: N802
            assert decode is False
            return "undecoded"

        @classmethod
        def load_dataset(cls, *name):
            cls.asked = name
            if isinstance(cls.answer, Exception):
                raise cls.answer
            return cls.answer

        load_from_disk = load_dataset

    monkeypatch.setitem(sys.modules, "datasets", Datasets)
    return Datasets


def rows(paint, tmp_path, n, **extra):
    cells = []
    for i in range(n):
        path = paint(tmp_path / f"{i}.png", i)
        cell = (
            {"bytes": path.read_bytes(), "path": None}
            if i % 2
            else {"bytes": None, "path": str(path)}
        )
        cells.append(
            {"image": cell, "label": i % 2, **{key: value(i) for key, value in extra.items()}}
        )
    return cells


def test_a_hugging_face_set_by_name(hub, load, paint, tmp_path):
    hub.answer = {
        "train": Part(rows(paint, tmp_path, 10, client=lambda i: f"k{i % 3}")),
        "test": Part(rows(paint, tmp_path, 4)),
    }
    data = load("hf:me/name:config", download=True)
    assert hub.asked == ("me/name", "config")
    assert data.names == ("x", "y")
    assert data.train_x[:, 0, 0, 0].tolist() == list(range(10))
    assert data.owners.tolist() == [i % 3 for i in range(10)]
    assert len(data.test_y) == 4
    with pytest.raises(
        CafedclError,
        match=r"hf:me/name: it has to be downloaded from the hub; set data.download = true",
    ):
        load("hf:me/name")


@pytest.mark.parametrize("mark", ["state.json", "dataset_dict.json", "dataset_info.json"])
def test_a_hugging_face_set_on_disk(mark, hub, load, paint, tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / mark).write_text("{}")
    hub.answer = Part(rows(paint, tmp_path, 10), names=None)
    data = load(tmp_path / "saved")
    assert hub.asked == (str(tmp_path / "saved"),)
    assert data.names == ("0", "1")
    assert len(data.test_y) == 2


def test_what_is_wrong_with_a_hugging_face_set(hub, load, paint, tmp_path, monkeypatch):
    hub.answer = ConnectionError("offline\nreally")
    with pytest.raises(CafedclError, match="hf:x: cannot be loaded: offline really"):
        load("hf:x", download=True)
    part = Part(rows(paint, tmp_path, 2), names=("only",))
    hub.answer = {"train": part}
    with pytest.raises(CafedclError, match="label 1 of train image 1 is out of range"):
        load("hf:x", download=True)
    hub.answer = {"extra": part}
    with pytest.raises(CafedclError, match="it has no split train or test, but extra"):
        load("hf:x", download=True)
    del part.features["label"]
    hub.answer = {"train": part}
    with pytest.raises(CafedclError, match=r"no column label or .*its columns are: image"):
        load("hf:x", download=True)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CafedclError, match="hf:x: datasets is not installed; install the extra hf"):
        load("hf:x", download=True)


@pytest.mark.parametrize("column", ["image", "label", "client", "patient"])
@pytest.mark.parametrize("names", [("x", "y"), None])
def test_a_gap_in_a_hugging_face_set_is_refused(column, names, hub, load, paint, tmp_path):
    cells = rows(paint, tmp_path, 10, client=lambda i: f"k{i % 3}", patient=lambda i: i)
    cells[3][column] = None
    part = Part(cells, names)
    part.features["patient"] = Column()
    hub.answer = {"train": part}
    with pytest.raises(CafedclError, match=f"hf:x: train image 3 has no {column}; fill it in"):
        load("hf:x", download=True)


def test_a_column_without_images_is_one_line(hub, load, paint, tmp_path, monkeypatch):
    def fail(*_):
        raise TypeError("Couldn't cast\nint64")

    monkeypatch.setattr(Part, "cast_column", fail)
    hub.answer = {"train": Part(rows(paint, tmp_path, 4))}
    with pytest.raises(CafedclError, match="the column 'image' holds no images: Couldn't cast int"):
        load("hf:x", download=True)


RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
Y = np.arange(20) % 4


@pytest.mark.parametrize(
    "keys",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_npz_with_training_and_test_images(keys, tmp_path, load):
    np.savez(tmp_path / "own.npz", **dict(zip(keys, (X, Y, X[:5], Y[:5][:, None]), strict=True)))
    data = load(tmp_path / "own.npz")
    np.testing.assert_array_equal(data.train_x, X.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.test_y, Y[:5])
    assert data.names == ("0", "1", "2", "3")


@pytest.mark.parametrize(("x", "y"), [("x", "y"), ("X", "Y"), ("images", "labels")])
def test_npz_with_one_part_holds_out_a_fifth(x, y, tmp_path, load):
    np.savez(tmp_path / "own.npz", **{x: X, y: Y})
    assert torch.bincount(load(tmp_path / "own.npz").test_y).tolist() == [1, 1, 1, 1]


def test_npz_validation_part(tmp_path, load, capsys):
    parts = {"x_train": X, "y_train": Y, "x_val": X[:3], "y_val": Y[:3]}
    np.savez(tmp_path / "own.npz", **parts)
    assert len(load(tmp_path / "own.npz").test_y) == 3
    np.savez(tmp_path / "own.npz", **parts, x_test=X, y_test=Y)
    assert len(load(tmp_path / "own.npz").test_y) == 20
    assert "3 validation images are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "x",
    [
        X[..., 0],
        X[..., :1],
        X[..., 0][:, None],
        X.transpose(0, 3, 1, 2),
        X / 255,
        X.astype(np.int64),
        X.astype(np.float32),
    ],
)
def test_shapes_and_types_of_images(x, tmp_path, load):
    np.savez(tmp_path / "own.npz", x_train=x, y_train=Y, x_test=x, y_test=Y)
    data = load(tmp_path / "own.npz")
    assert data.train_x.dtype == torch.uint8
    np.testing.assert_array_equal(data.train_x, X.transpose(0, 3, 1, 2)[:, : data.shape[0]])
    assert load(tmp_path / "own.npz", size=4).shape == (data.shape[0], 4, 4)


def test_grey_images_may_be_3_pixels_wide(tmp_path, load):
    grey = X[:, :, :3, 0]
    for x in (grey, grey[..., None]):
        np.savez(tmp_path / "own.npz", x_train=x, y_train=Y, x_test=x, y_test=Y)
        np.testing.assert_array_equal(load(tmp_path / "own.npz").train_x, grey[:, None])
        assert load(tmp_path / "own.npz", size=3).shape == (1, 3, 3)


def test_names_of_classes(tmp_path, load):
    np.savez(tmp_path / "own.npz", x=X, y=np.array(["owl", "cat"])[Y % 2])
    assert load(tmp_path / "own.npz").names == ("cat", "owl")
    np.savez(tmp_path / "own.npz", x=X, y=Y, classes=list("abcd"))
    assert load(tmp_path / "own.npz").names == tuple("abcd")
    np.savez(tmp_path / "own.npz", x=X, y=np.array(["käfer".encode(), b"cat"])[Y % 2])
    assert load(tmp_path / "own.npz").names == ("cat", "käfer")
    owls = np.array(["owl", "cat"])[Y % 2]
    np.savez(tmp_path / "own.npz", x=X, y=owls, classes=["owl", "cat"])
    assert load(tmp_path / "own.npz").names == ("owl", "cat")


@pytest.mark.parametrize("content", [pickle.dumps([1, 2]), b"", b"text", b"\x93NUMPY\x01\x00"])
def test_a_member_that_is_no_array_is_named(content, tmp_path, load):
    np.savez(tmp_path / "own.npz", x=X, y=Y)
    with zipfile.ZipFile(tmp_path / "own.npz", "a") as archive:
        archive.writestr("extra", content)
    with pytest.raises(CafedclError, match=r"own.npz: .*plain array") as caught:
        load(tmp_path / "own.npz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"z": X}, "it has z; expected x_train, y_train"),
        ({"x": X, "y": Y[:7]}, "20 training images but 7 labels"),
        ({"x": X, "y": Y + 1}, "class '0' has no .*take 1 from each if yours count from 1"),
        (
            {"x": X, "y": Y + 1, "classes": list("abcde")},
            "class 'a' has no training image; add some or leave the class out$",
        ),
        ({"x": X, "y": Y - 1}, "label -1 is out of range; labels count the classes from 0"),
        ({"x": X, "y": Y * 10**12}, "label .000000000000 is out of range"),
        (
            {"x": X, "y": Y, "classes": ["a"]},
            "label 1 of training image 0 is out of range|label . of training",
        ),
        ({"x": X, "y": Y * 2}, "class '1' has no training image"),
        ({"x": X, "y": np.eye(4)[Y]}, "one whole number per image is expected"),
        ({"x": X, "y": Y + 0.5}, "labels are fractions"),
        ({"x": X, "y": np.where(np.arange(20) == 7, np.nan, Y)}, "the label of image 7 is NaN"),
        ({"x": X.astype(int) * 2, "y": Y}, "training pixels run from 0 to 51.; expected 0 to 255"),
        ({"x": X / 255 - 0.5, "y": Y}, "pixels run from -0.5 to 0.5"),
        ({"x": np.full(X.shape, np.nan), "y": Y}, "pixels run from nan"),
        ({"x": X.astype(complex), "y": Y}, "pixels are of type complex128"),
        ({"x": X[:, :, :, [0, 0]], "y": Y}, "images of shape 20×6×6×2"),
        ({"x": X[:, 0, 0], "y": Y}, "images of shape 20×3"),
        ({"x": X[:0], "y": Y[:0]}, "there are no training images"),
        (
            {"x_train": X, "y_train": Y, "x_test": X[:, :4], "y_test": Y},
            "differ in shape, 3×6×6 and 3×4×6",
        ),
        ({"x": np.array([{}]), "y": Y}, r"not a complete .npz file of plain arrays"),
        ({"x": np.uint8(3), "y": Y}, r"images of shape \(\), a single number"),
        ({"x": X, "y": np.int64(3)}, "the labels are a single value"),
        ({"x": X, "y": np.array("owl")}, "the labels are a single value"),
        ({"x": X, "y": Y, "classes": np.array("abcd")}, "a list of class names is expected"),
        ({"x": X, "y": np.array([b"\xe4", b"b"])[Y % 2]}, r"the label b'\\xe4' is not UTF-8 text"),
        ({"x": X, "y": Y, "classes": [b"a", b"b", b"\xff", b"d"]}, "class name .* is not UTF-8"),
        ({"x": X, "y": Y, "classes": list("abca")}, "two classes are named 'a'"),
        ({"x": X, "y": np.array(["owl", "cat"])[Y % 2], "classes": ["owl"]}, "label 'cat' is not"),
        ({"x": X, "y": np.where(Y > 1, np.inf, Y)}, "label inf is out of range"),
        (
            {"x_train": X, "y_train": np.array(["a", "b"])[Y % 2], "x_test": X, "y_test": Y % 2},
            "both must be texts or both whole numbers",
        ),
        ({"x": X, "y": Y, "x_test": X}, "it has x_test but no y_test"),
        ({"x_train": X, "y_train": Y, "val_labels": Y}, "it has val_labels but no val_images"),
        ({"x": X, "y": Y, "X": X}, "two of its arrays differ only by case"),
    ],
)
def test_arrays_that_do_not_fit_say_why(arrays, words, tmp_path, load):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(CafedclError, match=words) as caught:
        load(tmp_path / "own.npz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "labels", "name"),
    [
        ("images.npy", "labels.npy", ""),
        ("images.npy", "labels.npy", "images.npy"),
        ("scans.npy", "scans_labels.npy", "scans.npy"),
        ("X.npy", "y.npy", "X.npy"),
    ],
)
def test_npy_with_labels_beside_it(images, labels, name, tmp_path, load):
    np.save(tmp_path / images, X)
    with pytest.raises(CafedclError, match="its labels are missing; put them into"):
        load(tmp_path / name)
    np.save(tmp_path / labels, Y)
    assert load(tmp_path / name).classes == 4


def test_a_broken_npy_is_named(tmp_path, load):
    np.save(tmp_path / "y.npy", Y)
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(CafedclError, match=r"x.npy: not a complete .npy file"):
        load(tmp_path / "x.npy")
    with (tmp_path / "x.npy").open("wb") as file:
        np.savez(file, a=X)
    with pytest.raises(CafedclError, match=r"x.npy: it holds several arrays; name it .npz"):
        load(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(CafedclError, match=r"x.npz: it holds one array"):
        load(tmp_path / "x.npz")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_semicolons_and_tabs_separate_columns_too(separator, table, load):
    path = table()
    path.write_text(path.read_text().replace(",", separator))
    assert load(path).names == ("a", "b")
    named = path.read_text().replace("label", f'label{separator}"a, b, c, d; e; f"', 1)
    rows = named.replace(f"{separator}a\n", f"{separator}a{separator}x\n")
    path.with_name("quoted.csv").write_text(
        rows.replace(f"{separator}b\n", f"{separator}b{separator}x\n")
    )
    assert load(path.with_name("quoted.csv")).names == ("a", "b")
    path.write_text(path.read_text().replace(f"3.png{separator}b", f"3.png{separator}"))
    with pytest.raises(CafedclError, match="line 5 has no label"):
        load(path)


def test_rows_with_more_values_than_columns_are_refused(table, load):
    path = table()
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *(f"{row}," for row in rows)]))
    with pytest.raises(CafedclError, match="more values than its first line names columns"):
        load(path)


def test_columns_that_differ_only_by_case_are_refused(table, load):
    with pytest.raises(CafedclError, match="'label' and 'Label' differ only by case"):
        load(table(Label=lambda i: "z"))


def test_the_label_cannot_be_the_client_too(table, load):
    with pytest.raises(CafedclError, match="client = label: this column is the label"):
        load(table(), client="label")


def test_a_path_of_windows_is_named(table, load):
    with pytest.raises(CafedclError, match=r"written with / instead of \\"):
        load(table(path=lambda i: f"images\\{i}.png"))


def test_whole_numbers_with_gaps_in_a_parquet_file(tmp_path, table, load):
    pytest.importorskip("pyarrow")
    table()
    sides = ["train"] * 8 + ["test"] * 2
    frame = pd.DataFrame(
        {
            "path": [f"images/{i}.png" for i in range(10)],
            "label": ["a", "b"] * 5,
            "split": sides,
            "hospital": pd.array([7] * 9 + [None], dtype="Int64"),
        }
    )
    frame.to_parquet(tmp_path / "list.parquet")
    assert load(tmp_path / "list.parquet").owner_names == ("7",)
    frame.loc[0, "hospital"] = None
    frame.to_parquet(tmp_path / "list.parquet")
    with pytest.raises(CafedclError, match="row 1 has no hospital"):
        load(tmp_path / "list.parquet")


@pytest.mark.parametrize(
    ("hospitals", "message"),
    [
        (["North", "north"], "differ only by case or blanks"),
        (["North", ""], "image 1 has no hospital"),
        ([1.0, float("nan")], "image 1 has no hospital"),
    ],
)
def test_clients_of_arrays_are_checked_like_those_of_tables(hospitals, message, tmp_path, load):
    x = np.arange(20, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(20) // 10, hospital=np.array(hospitals * 10))
    with pytest.raises(CafedclError, match=message):
        load(tmp_path / "own.npz")


def test_classes_of_arrays_that_differ_only_by_blanks_are_refused(tmp_path, load):
    x = np.arange(20, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=np.array(["cat", "cat "] * 10))
    with pytest.raises(CafedclError, match="differ only by blanks"):
        load(tmp_path / "own.npz")


def test_labels_as_python_objects_say_how_to_save_them(tmp_path, load):
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 4, 4)), y=np.array(["a", "b"], dtype=object))
    with pytest.raises(CafedclError, match=r"save texts as y.astype\(str\)"):
        load(tmp_path / "own.npz")


def test_two_columns_of_one_name_are_refused(table, load):
    rows = "".join(f"images/{i}.png;{'ab'[i % 2]};x;x\n" for i in range(10))
    load(table(text="path;label;note;note\n" + rows))
    with pytest.raises(CafedclError, match="two columns are called 'label'; rename"):
        load(table(text="path;label;label;note\n" + rows))
