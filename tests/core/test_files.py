import os
from pathlib import Path
from threading import Thread

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, write_atomically


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
