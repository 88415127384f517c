"""Splits that other programs write and read."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cafedcl.config.split_options import SplitOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.shards import PARTS, Shards, save_shards
from cafedcl.data.split_tables import save_table
from cafedcl.data.splits import split
from cafedcl.task.build import prepare
from cafedcl.task.resolve import gather

LABELS = torch.arange(60) % 3
CLASSES = 3


def read(path: Path, seed: int = 0, test_share: float = 0.0, groups: object = None) -> Shards:
    options = SplitOptions(kind="file", file=str(path))
    chosen = None if groups is None else torch.tensor(groups)
    none = torch.zeros(0, dtype=torch.int64)
    return split(LABELS, none, CLASSES, 99, options, seed, test_share, chosen)


def table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "split.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 1000), st.integers(1, 5), st.sampled_from([0.0, 0.25]), st.booleans())
def test_a_written_split_is_read_again(
    tmp_path: Path, seed: int, clients: int, test_share: float, named: bool
) -> None:
    natural = torch.from_numpy(np.random.default_rng(seed).permutation(np.arange(60) % clients))
    options = SplitOptions(kind="natural")
    shards = split(LABELS, natural, CLASSES, clients, options, seed, test_share)
    if named:
        names = tuple(f"site {'edcba'[client]}, new" for client in range(clients))
        shards = Shards(shards.train, shards.validation, shards.test, shards.counts, names)
    path = tmp_path / "split.csv"
    save_table(shards, LABELS, path)
    again = read(path, seed=5, test_share=test_share)
    # Names are sorted, so clients may have other numbers.
    order = [sorted(shards.names).index(name) for name in shards.names] or [*range(clients)]
    assert again.names == tuple(sorted(shards.names))
    for part in PARTS:
        before, after = getattr(shards, part), getattr(again, part)
        assert [sorted(before[client].tolist()) for client in range(len(before))] == [
            sorted(after[order[client]].tolist()) for client in range(len(before))
        ]
    assert torch.equal(again.counts[order], shards.counts)


def test_a_table_is_what_it_looks_like(tmp_path: Path) -> None:
    shards = split(
        LABELS, torch.zeros(0, dtype=torch.int64), CLASSES, 4, SplitOptions(kind="iid"), 1, 0.0
    )
    path = tmp_path / "split.csv"
    save_table(shards, LABELS, path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["image"]) for row in rows] == list(range(60))
    assert [int(row["label"]) for row in rows] == LABELS.tolist()
    for row in rows:
        assert int(row["image"]) in getattr(shards, row["part"])[int(row["client"])]


@pytest.mark.parametrize("ending", [".csv", ".safetensors"])
def test_a_split_for_another_protocol_is_refused(tmp_path: Path, ending: str) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    path = (tmp_path / "split").with_suffix(ending)
    save = save_table if ending == ".csv" else save_shards
    save(split(LABELS, none, CLASSES, 4, SplitOptions(kind="iid"), 1, 0.25), LABELS, path)
    with pytest.raises(CafedclError, match=r"which only evaluate.protocol = pfllib uses"):
        read(path)
    save(split(LABELS, none, CLASSES, 4, SplitOptions(kind="iid"), 1, 0.0), LABELS, path)
    with pytest.raises(CafedclError, match=r"no test images, which evaluate.protocol = pfllib"):
        read(path, test_share=0.25)


def test_a_table_of_two_columns_is_enough(tmp_path: Path) -> None:
    lines = [f"{image},{'north' if image < 30 else 'south'}" for image in range(50)]
    path = table(tmp_path, "image, client", *lines)
    shards = read(path)
    assert shards.names == ("north", "south")
    held = shards.validation
    # A tenth of each class, and images that are not listed belong to nobody.
    assert held.sizes.tolist() == [3, 3]
    both = torch.cat([shards.train.indices, held.indices])
    assert sorted(both.tolist()) == list(range(50))
    assert len(shards.test) == 0
    assert read(path, test_share=0.25).test.sizes.sum() > 0


def test_numbers_from_1_are_names(tmp_path: Path) -> None:
    assert read(table(tmp_path, "client,image", "1,0", "2,1")).names == ("1", "2")
    assert read(table(tmp_path, "client,image", "1,0", "0,1")).names == ()
    lines = [f"{number},{number}" for number in range(12, 0, -1)]
    assert read(table(tmp_path, "client,image", *lines)).names == (*map(str, range(1, 13)),)


def test_a_part_of_the_data_needs_a_table_with_labels(tmp_path: Path) -> None:
    path = table(tmp_path, "image,client", *(f"{image},{image % 2}" for image in range(40)))
    asked = ["data.images=100", "split.kind=file", f"split.file={path}"]
    with pytest.raises(CafedclError, match="so the table needs the column label"):
        prepare(gather(settings=asked, method="fedavg"))
    prepare(gather(settings=asked[1:], method="fedavg"))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["image,clent", "0,a"], "it has no column 'client'"),
        (["image,client,image", "0,a,0"], "column 'image': it appears twice"),
        (["image,client,parts", "0,a,train"], "column 'parts': did you mean 'part'?"),
        (["image,client", "60,a"], "line 2: image = 60: the number of a training image is"),
        (["image,client", "0,a", "-1,a"], "line 3: image = -1: the number of a training image is"),
        (["image,client", "9" * 5000 + ",a"], "the number of a training image is expected"),
        (["image,client", "0,a", "", "0,b"], "line 4: image 0 is listed twice"),
        (["image,client", "0"], "line 2: 1 values; image, client are expected"),
        (["image,client", "0,"], "line 2: the client is missing"),
        (["image,client,label", "4,a,2"], "line 2: image 4 has the label 1 in these data, and 2"),
        (["image,client,part", "0,a,tran"], "line 2: part = tran: did you mean 'train'?"),
        (["image,client,part", "0,a,train", "1,b,validation"], "b has no training images"),
        (["image,client"], "it lists no image"),
        ([], "it has no column 'image'"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, lines: list[str], reason: str) -> None:
    path = table(tmp_path, *lines)
    with pytest.raises(CafedclError) as told:
        read(path)
    assert str(told.value).startswith(str(path))
    assert reason in str(told.value)
    assert "\n" not in str(told.value)


def test_a_table_that_takes_a_group_apart_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, "image,client,part", "0,a,train", "1,a,validation", "2,a,train")
    with pytest.raises(CafedclError, match="made without the data's groups"):
        read(path, groups=[0, 0, *range(1, 59)])
    assert read(path, groups=[0, 1, 0, *range(2, 59)]).train.sizes.tolist() == [2]


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(CafedclError, match="not a CSV file in UTF-8"):
        read(path)
    with pytest.raises(CafedclError, match="No such file"):
        read(tmp_path / "none.csv")
