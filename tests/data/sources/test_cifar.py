import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.data.files.pickles import unpickle

RNG = np.random.default_rng(0)
FORMS = {
    "cifar10": ("cifar-10-python.tar.gz", "cifar-10-batches-py", "label", 10),
    "cifar100": ("cifar-100-python.tar.gz", "cifar-100-python", "fine_label", 100),
}


def batches(name, protocol=2):
    """The official files of a tiny set with every class once per batch, and the images and labels
    in them.
    """
    key, classes = FORMS[name][2:]
    files = {
        "cifar10": [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"],
        "cifar100": ["train", "test"],
    }[name]
    x = []
    y = []
    content = {}
    for file in files:
        x.append(RNG.integers(0, 256, (classes, 3072), dtype=np.uint8))
        y.append(RNG.permutation(classes).tolist())
        batch = {
            b"batch_label": b"of 5",
            f"{key}s".encode(): y[-1],
            b"data": x[-1],
            b"filenames": [b"a.png"] * classes,
        }
        content[file] = pickle.dumps(batch, protocol)
    meta = {
        f"{key}_names".encode(): [f"class {c}".encode() for c in range(classes)],
        b"num_vis": 3072,
    }
    content["batches.meta" if name == "cifar10" else "meta"] = pickle.dumps(meta, protocol)
    return content, np.stack(x).reshape(len(files), classes, 3, 32, 32), np.array(y)


def write_tar(path, content, folder):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(f"{folder}/{name}" if folder else name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_the_official_archive_is_read(name, protocol, data_dir, load):
    content, x, y = batches(name, protocol)
    write_tar(data_dir / FORMS[name][0], content, FORMS[name][1])
    data = load(name)
    np.testing.assert_array_equal(data.train_x, x[:-1].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(data.train_y, y[:-1].flatten())
    np.testing.assert_array_equal(data.test_x, x[-1])
    np.testing.assert_array_equal(data.test_y, y[-1])
    assert data.names == tuple(f"class {c}" for c in range(FORMS[name][3]))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("where", ["{}", "{}-target/{}", "cifar10/{}"])
def test_an_unpacked_folder_is_read(name, where, data_dir, load):
    content, x, _ = batches(name)
    folder = data_dir / where.format(FORMS[name][1], FORMS[name][1]).replace("cifar10/", f"{name}/")
    folder.mkdir(parents=True)
    for file, data in content.items():
        (folder / file).write_bytes(data)
    np.testing.assert_array_equal(load(name).test_x, x[-1])


def test_pickles_of_python_2_are_read():
    """As the official files are: str for bytes, and numpy.core for the array."""
    old = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1q\x07K\x00K\x01\x87Rq\x08(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89U\x06abcdeftbU\x06labelsq\x09]q\x0a(K\x01K\x00eu."
    )
    value = unpickle(old, "old")
    assert value["labels"] == [1, 0]
    assert value["data"].tolist() == [[97, 98, 99], [100, 101, 102]]


class Evil:
    def __init__(self, call, *args):
        self.call = call
        self.args = args

    def __reduce__(self):
        return self.call, self.args


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(protocol, tmp_path, data_dir, load):
    mark = tmp_path / "mark"
    content, _, _ = batches("cifar10")
    content["data_batch_3"] = pickle.dumps({b"data": Evil(os.system, f"touch {mark}")}, protocol)
    write_tar(data_dir / FORMS["cifar10"][0], content, FORMS["cifar10"][1])
    with pytest.raises(
        CafedclError,
        match=r"data_batch_3: refused: the pickle asks for \w+.system, and only arrays",
    ):
        load("cifar10")
    assert not mark.exists()


@pytest.mark.parametrize(
    "value",
    [
        Evil(eval, "1"),
        Evil(getattr, "text", "upper"),
        np.zeros(3),
        np.array([{}, None], dtype=object),
        np.float64(3),
    ],
)
def test_nothing_but_arrays_of_bytes_is_read(value):
    with pytest.raises(CafedclError, match=r"^x: refused: the pickle asks for"):
        unpickle(pickle.dumps({"data": value}), "x")


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"garbage", pickle.dumps({"a": b"x" * 99})[:-20], pickle.dumps([1])]
)
def test_a_broken_pickle_is_one_line(data):
    with pytest.raises(
        CafedclError, match=r"^x: .*(not a complete pickle|holds no dict)"
    ) as caught:
        unpickle(data, "x")
    assert "\n" not in str(caught.value)


def damaged(kind):
    content, _, _ = batches("cifar10")
    if kind == "missing":
        del content["test_batch"]
    elif kind == "no data":
        content["test_batch"] = pickle.dumps({b"labels": [1]})
    elif kind == "no labels":
        content["test_batch"] = pickle.dumps({b"data": np.zeros((1, 3072), np.uint8)})
    elif kind == "no names":
        content["batches.meta"] = pickle.dumps({b"label_names": [b"one"]})
    elif kind == "label":
        content["test_batch"] = pickle.dumps(
            {b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}
        )
    return content


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "missing",
            "it is not the official archive, since it has no 'cifar-10-batches-py/test_batch'",
        ),
        ("no data", "a batch holds no rows of 3,072 bytes"),
        ("no labels", "a batch holds no list of labels"),
        ("no names", "batches.meta does not name 10 classes"),
        ("label", "label 10 of test image 0 is out of range"),
    ],
)
def test_an_archive_with_something_else_in_it_says_what(kind, words, data_dir, load):
    write_tar(data_dir / "cifar-10-python.tar.gz", damaged(kind), "cifar-10-batches-py")
    with pytest.raises(CafedclError, match=words):
        load("cifar10")


def test_a_truncated_archive_is_refused(data_dir, load):
    path = data_dir / "cifar-10-python.tar.gz"
    write_tar(path, batches("cifar10")[0], "cifar-10-batches-py")
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 2000):
        path.write_bytes(whole[:size])
        with pytest.raises(
            CafedclError,
            match=r"python.tar.gz: not a complete archive .*delete it and get it again",
        ):
            load("cifar10")


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "cifar-10-batches-py/../../evil", "C:\\evil", "..\\evil"]
)
def test_a_path_that_leaves_the_archive_is_refused(name, data_dir, load):
    content, _, _ = batches("cifar10")
    members = {f"cifar-10-batches-py/{file}": data for file, data in content.items()} | {name: b"x"}
    write_tar(data_dir / "cifar-10-python.tar.gz", members, "")
    with pytest.raises(
        CafedclError, match=r"refused: its member '.*evil' lies outside the archive"
    ):
        load("cifar10")
    assert not list(data_dir.parent.rglob("*evil*"))


def test_a_link_is_not_followed(data_dir, load, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    with tarfile.open(data_dir / "cifar-10-python.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        info.type = tarfile.SYMTYPE
        info.linkname = str(tmp_path / "secret")
        archive.addfile(info)
    with pytest.raises(CafedclError, match="it has no"):
        load("cifar10")
