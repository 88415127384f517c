import os
import re
from pathlib import Path
from threading import Thread

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, refuse_other_file, require_writable, write_atomically


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    link = tmp_path / "link"
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """Replaced by a file, /dev/null would be lost to the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, b"new")
    reader.join()
    assert read == [b"new"]
    assert pipe.is_fifo()


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x.csv.tmp").mkdir()
    with (
        pytest.raises(CafedclError, match=r"/x\.csv: cannot be written: Is a directory"),
        explained(tmp_path),
    ):
        write_atomically(tmp_path / "x.csv", b"")


@pytest.mark.parametrize(
    ("content", "own", "refused"),
    [
        (b"", re.compile(b"image,"), False),
        (b"image,class\na,b\n", re.compile(b"image,"), False),
        (b"file,label\na,b\n", re.compile(b"image,"), True),
    ],
)
def test_a_file_is_replaced_only_by_one_of_its_kind(
    tmp_path: Path, content: bytes, own: re.Pattern[bytes], refused: bool
) -> None:
    path = tmp_path / "file"
    refuse_other_file(path, own, "table")
    path.write_bytes(content)
    if not refused:
        refuse_other_file(path, own, "table")
        return
    with pytest.raises(CafedclError, match=f"^--out {path}: it exists and is no table; choose"):
        refuse_other_file(path, own, "table")


def test_what_is_no_file_is_not_read_first(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refuse_other_file(pipe, re.compile(b"image,"), "table")


def test_whether_a_file_can_be_written_is_known_beforehand(tmp_path: Path) -> None:
    file = tmp_path / "new" / "model.onnx"
    require_writable(file)
    assert list(file.parent.iterdir()) == []
    file.write_bytes(b"earlier")
    require_writable(file)
    assert file.read_bytes() == b"earlier"
    with pytest.raises(CafedclError, match="new: cannot be written: Is a directory"):
        require_writable(file.parent)
    with pytest.raises(CafedclError, match=r"/x: cannot be written: Not a directory"):
        require_writable(file / "x" / "y.onnx")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    require_writable(pipe)
