"""Columns of a table by their names: clients, groups, and those that are not understood."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from cafedcl.config.data_options import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.own.columns import find_columns, role_of_lookalike


@pytest.fixture
def table(tmp_path):
    """Write a table of 24 different images with the given columns besides path and label."""

    def make(n=24, **columns):
        rng = np.random.default_rng(0)
        for i in range(n):
            image = Image.fromarray(rng.integers(0, 256, (6, 6), dtype=np.uint8))
            image.save(tmp_path / f"{i}.png")
        values = {"path": [f"{i}.png" for i in range(n)], "label": ["ab"[i % 2] for i in range(n)]}
        values |= {name: [of(i) for i in range(n)] for name, of in columns.items()}
        path = tmp_path / "list.csv"
        pd.DataFrame(values).to_csv(path, index=False)
        return path

    return make


@pytest.mark.parametrize("name", ["site", "Hospital", "client", "INSTITUTION "])
def test_a_column_of_places_is_the_clients(name, table, load):
    data = load(table(**{name: lambda i: ["North", "South"][i // 12]}))
    assert data.owner_names == ("North", "South")
    assert data.owner_kind == "natural"


def test_a_column_of_sources_is_another_split(table, load, capsys):
    data = load(table(source=lambda i: f"camera {i % 2}"))
    assert (data.owner_kind, data.owner_names) == ("source", ("camera 0", "camera 1"))
    assert "--split source makes the values of 'source' clients" in capsys.readouterr().err
    data = load(table(source=lambda i: f"camera {i % 2}", site=lambda i: "NS"[i % 2]))
    assert (data.owner_kind, data.owner_names) == ("natural", ("N", "S"))


@pytest.mark.parametrize("name", ["patient", "lesion", "Group", "patient_id"])
def test_a_patient_is_on_one_side(name, table, load):
    data = load(table(**{name: lambda i: f"P{i // 4}"}))
    assert data.group_kind == name
    assert len(data.groups) == len(data.train_y)
    assert not set(data.groups.tolist()) & set(data.test_groups.tolist())
    assert set(data.groups.tolist()) | set(data.test_groups.tolist()) == set(range(6))


def test_options_name_the_columns(table, load, capsys):
    path = table(ward=lambda i: i % 3, person=lambda i: i // 2, hospital=lambda i: "x")
    data = load(path, client="ward", group="person")
    assert data.owner_names == ("0", "1", "2")
    assert data.group_kind == "person"
    capsys.readouterr()
    data = load(path, client="none", group="none")
    assert not data.owner_names
    assert not len(data.groups)
    # What was switched off is not suggested again.
    assert "set data.client" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["client", "group"])
def test_an_unknown_column_is_refused_with_the_nearest(option, table, load):
    path = table(ward=lambda i: i % 3)
    with pytest.raises(CafedclError, match=f"data.{option} = wart: .* did you mean 'ward'"):
        load(path, **{option: "wart"})


def test_columns_that_are_not_understood_are_named_and_suggested(table, load, capsys):
    load(table(age=lambda i: i, clinic_name=lambda i: i % 2, subject=lambda i: i, fold=lambda i: 1))
    warning = capsys.readouterr().err
    assert "4 columns are not used: age, clinic_name (if it is the client, set data.client = " in (
        warning
    )
    load(table(line=lambda i: i % 3))
    assert "line (if it is the client, set data.client = line)" in capsys.readouterr().err
    assert "subject (if its images belong together, add --group subject)" in warning
    assert "fold (if it says train or test, rename it to split)" in warning


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("Center", "client"),
        ("study-uid", "group"),
        ("dx", "label"),
        ("sex", None),
        ("bodyset", None),
    ],
)
def test_what_a_name_looks_like(name, role):
    assert role_of_lookalike(name) == role


def test_a_missing_label_names_what_looks_like_one():
    with pytest.raises(CafedclError, match=r"no column label or class.*dx: if it is the class"):
        find_columns("list.csv", ["path", "dx"], DataOptions())


def test_a_patient_in_training_and_test_is_refused(table, load):
    path = table(patient=lambda i: i // 4, split=lambda i: "test" if i > 20 else "train")
    with pytest.raises(CafedclError, match=r"patient '5' has images in training and in test"):
        load(path)
    assert len(load(path, group="none").test_y) == 3


def test_patients_that_may_be_one_are_told(table, load, tmp_path, capsys):
    names = ["P1", "p1", "P2", "P3"]
    load(table(patient=lambda i: names[i % 4]))
    told = "differ only by case, blanks, accents or leading zeros and count as two"
    assert told in capsys.readouterr().err
    np.savez(tmp_path / "own.npz", **arrays(), patient=np.array(names)[np.arange(24) % 4])
    load(tmp_path / "own.npz")
    assert told in capsys.readouterr().err
    load(table(patient=lambda i: f"P{i % 4}"))
    assert told not in capsys.readouterr().err


def test_a_patient_of_two_hospitals_is_told(table, load, capsys):
    load(table(patient=lambda i: i // 2, site=lambda i: "NS"[i > 10]))
    assert "1 values of patient occur at several clients" in capsys.readouterr().err


def test_columns_are_for_tables(tmp_path, load, paint):
    for name in ("a/0.png", "b/1.png"):
        paint(tmp_path / "own" / name)
    with pytest.raises(CafedclError, match=r"data.group = patient: these data have no columns"):
        load(tmp_path / "own", group="patient")


def test_the_cache_knows_the_columns(table, load):
    path = table(patient=lambda i: i // 4, site=lambda i: "NS"[i % 2])
    for _ in range(2):
        data = load(path)
        assert (data.group_kind, data.owner_names) == ("patient", ("N", "S"))
        assert data.window == ()
        assert not load(path, group="none").group_kind


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (lambda i: ["a", "b", "a|b"][i % 3], "the label 'a|b' is a list; in scope is single-label"),
        (lambda i: ["['a', 'b']", "['a']"][i % 2], "is a list; in scope is single-label"),
        (lambda i: i / 7, "the labels are 24 numbers such as .* measured values are not"),
    ],
)
def test_labels_out_of_scope_are_refused(labels, words, table, load):
    with pytest.raises(CafedclError, match=words.replace("|", r"\|").replace("[", r"\[")):
        load(table(label=labels))


@pytest.mark.parametrize("labels", [lambda i: [0.5, 1.0, 1.5][i % 3], lambda i: "x|y z"[i % 2 :]])
def test_labels_that_only_look_unusual_are_classes(labels, table, load):
    assert len(load(table(label=labels)).names) in (2, 3)


def arrays(n=24):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, 6, 6), dtype=np.uint8)
    return {"x": x, "y": np.arange(n) % 2}


def test_arrays_have_clients_and_groups_too(tmp_path, load, capsys):
    path = tmp_path / "own.npz"
    sites = np.array(["North", "South"])[np.arange(24) // 12]
    np.savez(path, **arrays(), site=sites, patient=np.arange(24) // 4, age=np.arange(24))
    data = load(path)
    assert data.owner_names == ("North", "South")
    assert not set(data.groups.tolist()) & set(data.test_groups.tolist())
    assert "1 array is not used: age" in capsys.readouterr().err
    np.savez(path, **arrays(), site=sites[:5])
    with pytest.raises(CafedclError, match="24 images but 5 clients"):
        load(path)


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.float64])
def test_a_patient_is_the_same_one_whatever_kind_of_number_names_it(kind, tmp_path, load):
    one = arrays()
    patients = np.arange(24) // 4
    parts = {"x_train": one["x"], "y_train": one["y"], "x_test": one["x"], "y_test": one["y"]}
    path = tmp_path / "own.npz"
    np.savez(path, **parts, patient_train=patients.astype(kind), patient_test=patients)
    with pytest.raises(CafedclError, match="a patient has images in training and in test"):
        load(path)


def test_the_names_of_x_and_y_may_be_those_of_training_images(tmp_path, load, capsys):
    one = arrays()
    path = tmp_path / "own.npz"
    other = {"x_test": one["x"][::-1], "y_test": one["y"], "patient_test": 50 + np.arange(24)}
    more = {"x_val": one["x"], "y_val": one["y"], "patient_val": np.arange(24)}
    np.savez(path, **one, patient=np.arange(24) // 4, **other, **more)
    data = load(path)
    assert (data.group_kind, len(set(data.groups.tolist()))) == ("patient", 6)
    assert "not used" not in capsys.readouterr().err


def test_images_under_a_second_name_are_named(tmp_path, load, capsys):
    one = arrays()
    path = tmp_path / "own.npz"
    np.savez(path, x_train=one["x"], y_train=one["y"], images=one["x"], labels=one["y"])
    assert len(load(path).train_y) < 24
    assert "2 arrays are not used: images, labels" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "names", "words"),
    [
        ("label", ["01", "1", "2"], "the class names '01' and '1' differ only by leading zeros"),
        ("site", ["1.0", "1", "2"], "the client names '1' and '1.0' differ only by leading zeros"),
    ],
)
def test_numbers_that_are_written_in_two_ways_are_refused(column, names, words, table, load):
    with pytest.raises(CafedclError, match=words):
        load(table(**{column: lambda i: names[i % 3]}))


def test_patients_whose_numbers_are_written_in_two_ways_are_named(table, load, capsys):
    load(table(patient=lambda i: ["7", "07", "8", "70"][i % 4]))
    assert "values of patient '07' and '7' differ only by" in capsys.readouterr().err
    load(table(patient=lambda i: ["7", "70", "0.7", "700"][i % 4]))
    assert "differ only by" not in capsys.readouterr().err


@pytest.mark.parametrize("unknown", ["nan", "None", "N/A"])
def test_patients_who_are_not_known_are_named(unknown, table, load, capsys):
    load(table(patient=lambda i: unknown if i % 2 else f"P{i}"))
    told = f"12 images have '{unknown}' as their patient, and count as one patient"
    assert told in capsys.readouterr().err


def test_arrays_that_are_split_have_roles_on_both_sides(tmp_path, load):
    one = arrays()
    parts = {
        "x_train": one["x"][:20],
        "y_train": one["y"][:20],
        "x_test": one["x"][20:],
        "y_test": one["y"][20:],
        "source_train": np.arange(20) % 2,
        "source_test": np.arange(4) % 2,
        "sources": np.array(["vienna", "rosendahl"]),
        "lesion_train": np.arange(20),
        "lesion_test": np.arange(20, 24),
    }
    path = tmp_path / "own.npz"
    np.savez(path, **parts)
    data = load(path)
    assert (data.owner_kind, data.owner_names) == ("source", ("rosendahl", "vienna"))
    assert data.owners.tolist() == [1, 0] * 10
    assert len(data.groups) == 20
    np.savez(path, **{**parts, "lesion_test": np.arange(4)})
    with pytest.raises(CafedclError, match="a lesion has images in training and in test"):
        load(path)


def test_images_in_training_and_test_are_found(table, tmp_path, load, capsys):
    path = table(split=lambda i: "test" if i > 20 else "train")
    (tmp_path / "22.png").write_bytes((tmp_path / "3.png").read_bytes())
    load(path)
    warning = capsys.readouterr().err
    assert "1 test images are in the training set too: 22.png = 3.png" in warning
    # The warning is kept with the cached images.
    load(path)
    assert capsys.readouterr().err == warning
    one = arrays()
    twins = {f"{name}_{side}": one[name] for name in "xy" for side in ("train", "test")}
    np.savez(tmp_path / "own.npz", **twins)
    load(tmp_path / "own.npz")
    assert "24 test images are in the training set too" in capsys.readouterr().err
