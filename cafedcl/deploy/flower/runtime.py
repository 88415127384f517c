"""Flower's Runtime API: a process of ours executes the tasks of a SuperNode or a SuperLink.

With ``--isolation process``, SuperNode and SuperLink execute nothing. The process that holds their
secret takes a task, pulls its request, and pushes the answer. This is an interface inside Flower,
so this is the only file that uses it, and pyproject.toml pins Flower's version. The steps are those
of ``flwr/supernode/runtime/run_clientapp.py``, without the two that install the submitted app and
import it.
"""

import functools
import io
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.app.error import Error
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto, run_from_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from cafedcl.core.version import __version__
from cafedcl.deploy.app import write_app
from cafedcl.deploy.flower.records import MessageParts, unwrap, wrap

HEARTBEAT = 10.0
"""Seconds between two heartbeats of a task; Flower drops a task after 60 s without one."""
PAUSE = 0.25
"""Seconds before asking for the next task if there is none."""
RETRY = 1.0
"""Seconds before asking again if there is no answer."""
ARRIVAL = 180.0
"""A request is dropped after this many seconds without a further part. A SuperNode offers a request
before its parts are there. If its run is stopped meanwhile, they never come, and with Flower's own
limits the site would answer no other request for more than an hour.
"""
NODE_TASKS = (TaskType.CLIENT_APP, TaskType.AGENT_APP)
"""All kinds of tasks that a SuperNode has. It waits for an answer to each, even if we refuse it."""
LARGEST_FILE = 1 << 20
"""The most bytes of a file in an app that is compared with ours."""


class RefusedError(Exception):
    """Why a task is not executed."""


class Runtime:
    """The Runtime API at an address; ``ca`` is the certificate that its server must show."""

    def __init__(self, address: str, secret: bytes, ca: bytes | None) -> None:
        self.address = address
        self.ca = ca
        self.client = self._client(
            SuperExecAuthHttpInterceptor(
                master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
            )
        )

    def _client(self, interceptor: ProtobufClientInterceptor) -> RuntimeHttpClient:
        # Flower's retries never end, and send SIGINT to the process, so there are none.
        return RuntimeHttpClient.from_server_address(
            self.address,
            insecure=self.ca is None,
            root_certificates=self.ca,
            interceptors=[RuntimeVersionHttpInterceptor("cafedcl"), interceptor],
        )

    def acquire(self, kinds: tuple[TaskType, ...]) -> "RuntimeTask | None":
        """Take the oldest task, if there is one."""
        answer = self.client.AcquireTask(AcquireTaskRequest(supported_task_types=kinds))
        if not answer.token:
            return None
        return RuntimeTask(self._client(RuntimeTokenHttpInterceptor(answer.token)), answer.token)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


class RuntimeTask:
    """A task that was taken, with the app that was submitted for its run.

    Flower waits for it while it is open: it sends a heartbeat.
    """

    def __init__(self, client: RuntimeHttpClient, token: str) -> None:
        self.client = client
        self.token = token
        given = client.PullTaskInput(PullTaskInputRequest())
        self.run = run_from_proto(given.run)
        self.fab: bytes = given.fab.content
        self.node = Node(node_id=given.context.node_id)
        # Flower stamps every message of this process with these.
        TaskIdentity.task_id = given.task_id
        TaskIdentity.run_id = self.run.run_id
        TaskIdentity.node_id = given.context.node_id
        self.closed = threading.Event()
        self.heart = threading.Thread(target=self._send_heartbeats, daemon=True)
        self.heart.start()

    def _send_heartbeats(self) -> None:
        while not self.closed.wait(HEARTBEAT):
            # A failure is noticed when the answer is pushed.
            with suppress(httpx.HTTPError):
                self.client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def __enter__(self) -> "RuntimeTask":
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self.heart.join()
        self.client.close()

    @property
    def app(self) -> str:
        """The submitted app, by the name it declares."""
        return f"{self.run.fab_id} {self.run.fab_version} (run {self.run.run_id})"

    def answer(self, respond: Callable[[MessageParts], MessageParts]) -> None:
        """Answer the task's request; to refuse it, tell the server why and raise RefusedError."""
        given = self.client.PullMessages(PullAppMessagesRequest())
        request = message_from_proto(given.messages_list[0])
        tree = given.message_object_trees[0]
        try:
            refuse_foreign_app(self.fab, self.app)
            request = self._pull(tree)
            try:
                parts = unwrap(request.content)
            except ValueError as error:
                raise RefusedError(
                    f"{self.app}: a message that is not cafedcl's: {error}"
                ) from None
        except RefusedError as error:
            reason = f"refused: {error}"
            self._push(Message(Error(ErrorCode.INVALID_FAB, reason), reply_to=request))
            self.finish(reason)
            raise
        except ObjectPullError as error:
            self.finish(str(error))
            raise
        self._push(Message(wrap(respond(parts)), reply_to=request))
        self.finish()

    def _pull(self, tree: ObjectTree) -> Message:
        run = self.run.run_id
        pull = make_pull_object_fn_protobuf(self.client.PullObject, self.node, run)
        last = time.monotonic()

        def pull_soon(name: str) -> bytes:
            nonlocal last
            try:
                content: bytes = pull(name)
            except ObjectUnavailableError:
                if time.monotonic() > last + ARRIVAL:
                    raise ObjectPullError(name, f"nothing came for {ARRIVAL:g} s") from None
                raise
            last = time.monotonic()
            return content

        message: Message = pull_and_inflate_object_from_tree(
            tree,
            pull_soon,
            make_confirm_message_received_fn_protobuf(
                self.client.ConfirmMessageReceived, self.node, run
            ),
            return_type=Message,
        )
        # A message does not contain its own id.
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def _push(self, message: Message) -> None:
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            accepted = self.client.PushMessages(
                PushAppMessagesRequest(
                    messages_list=[message_to_proto(remove_content_from_message(message))],
                    message_object_trees=[get_object_tree(message)],
                )
            )
            push_objects(
                get_all_nested_objects(message),
                make_push_object_fn_protobuf(
                    self.client.PushObject, self.node, self.run.run_id, accepted.session_id
                ),
                object_ids_to_push=set(accepted.objects_to_push),
            )

    def finish(self, error: str = "", *, stopped: bool = False) -> None:
        """Report that the task is done, or why it failed or was stopped."""
        status = SubStatus.FAILED if error else SubStatus.COMPLETED
        if stopped:
            status = SubStatus.STOPPED
        self.client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=error))


def refuse_foreign_app(fab: bytes, app: str) -> None:
    """Raise RefusedError unless a submitted app has exactly the files of this installation's app.

    No app is ever installed or imported at a site, so foreign code never runs there, whatever this
    check finds. It keeps other apps from talking to the site at all, with a reason in the log, and
    it informs an operator whose version of cafedcl differs from the site's. The files are compared,
    not the digest of the archive, because two machines may compress the same files differently. A
    hostile server can submit our app and still send messages of its own; those are limited by what
    `Site` answers.
    """
    if app_files(fab) != own_files():
        raise RefusedError(
            f"{app} is not the app of cafedcl {__version__}, the only one that runs here; "
            "server and sites need the same version of cafedcl"
        )


@functools.cache
def own_files() -> dict[str, bytes] | None:
    """Return the files of this installation's app, as `flwr run` would submit them."""
    with tempfile.TemporaryDirectory() as folder:
        return app_files(build_fab_from_disk(write_app(Path(folder) / "cafedcl-run")))


def app_files(fab: bytes) -> dict[str, bytes] | None:
    """Return the files of an app; None if they are too large, or if it is not an archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as archive:
            if any(file.file_size > LARGEST_FILE for file in archive.infolist()):
                return None
            return {file.filename: archive.read(file) for file in archive.infolist()}
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError):
        return None


def work_off(
    connect: Callable[[], Runtime],
    respond: Callable[[MessageParts], MessageParts],
    say: Callable[[str], None],
) -> None:
    """Execute the tasks of a SuperNode one after another, forever."""
    runtime: Runtime | None = None
    while True:
        try:
            runtime = runtime or connect()
            task = runtime.acquire(NODE_TASKS)
            if task is None:
                time.sleep(PAUSE)
                continue
            with task:
                task.answer(respond)
        except RefusedError as error:
            say(f"refused: {error}")
        except ObjectPullError:
            say("warning: a request never came in full; its run may have been stopped")
        except ObjectPushError:
            say("warning: nobody took the answer to a request; its run may have been stopped")
        except httpx.HTTPStatusError as error:
            say(f"warning: a task was given up: {error}")
            time.sleep(RETRY)
        except (httpx.TransportError, FileNotFoundError):
            # The SuperNode is not there yet, or it was restarted at another address.
            if runtime is not None:
                runtime.close()
            runtime = None
            time.sleep(RETRY)
