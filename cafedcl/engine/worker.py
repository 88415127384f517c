"""A worker process: builds the run's bench once, then works off client jobs until its pipe is closed."""

import sys
from multiprocessing.connection import Connection

from cafedcl.config import resolve
from cafedcl.contract import Down
from cafedcl.data.dataset import Dataset
from cafedcl.engine.eager import Eager
from cafedcl.engine.wire import pack_result, unpack_down, unpack_job
from cafedcl.pack import map_file, unpack
from cafedcl.setup import prepare

READY = b"ready"
DOWN, JOB = b"d", b"j"


def serve(pipe: Connection, shared: int) -> None:
    """Work off jobs; ``shared`` is the descriptor of the file that holds the data, mapped and never copied."""
    tensors, header = map_file(f"/dev/fd/{shared}")
    data = Dataset.from_tensors(tensors, tuple(header["names"]))
    _, start = unpack(pipe.recv_bytes())
    engine = Eager(prepare(resolve(start["config"]), data).bench)
    pipe.send_bytes(READY)
    down = Down(-1, {})
    while True:
        frame = pipe.recv_bytes()
        if frame[:1] == DOWN:
            down = unpack_down(frame[1:])
        else:
            pipe.send_bytes(pack_result(engine.attempt(unpack_job(frame[1:], down))))


if __name__ == "__main__":
    try:
        serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)
