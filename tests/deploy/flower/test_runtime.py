"""Which tasks of a SuperNode a site's worker works off, and which it refuses.

`tests/deploy/test_end_to_end.py` has the same with a real SuperNode.
"""

import io
import zipfile
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError

from cafedcl.deploy.flower import runtime as module
from cafedcl.deploy.flower.records import wrap
from cafedcl.deploy.flower.runtime import (
    RefusedError,
    RuntimeTask,
    own_files,
    refuse_foreign_app,
    work_off,
)


def archive(files, method=zipfile.ZIP_STORED):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return data.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_our_own_app_is_accepted_however_it_was_compressed(method):
    refuse_foreign_app(archive(own_files(), method), "app")


def test_our_app_has_no_code():
    assert {name.rpartition(".")[2] for name in own_files()} == {"toml", "md", "info/CONTENT"}


@pytest.mark.parametrize(
    "change",
    [
        lambda files: archive({**files, "evil.py": b"import os"}),
        lambda files: archive({**files, "pyproject.toml": b"[project]\nname = 'cafedcl-run'\n"}),
        lambda files: archive({"pyproject.toml": files["pyproject.toml"]}),
        lambda files: archive({**files, "README.md": bytes(1 << 24)}, zipfile.ZIP_DEFLATED),
        lambda files: archive(files)[:-30],
        lambda _: b"",
    ],
    ids=["more", "changed", "less", "bomb", "broken", "nothing"],
)
def test_any_other_app_is_refused_by_name(change):
    with pytest.raises(RefusedError, match=r"evil/app 1\.0 .*not the app of cafedcl"):
        refuse_foreign_app(change(own_files()), "evil/app 1.0")


class Supernode:
    """Plays the Runtime API of a SuperNode with one request."""

    def __init__(self, request, fab):
        self.tree = get_object_tree(request)
        self.objects = {
            name: thing.deflate() for name, thing in get_all_nested_objects(request).items()
        }
        self.listed = message_to_proto(remove_content_from_message(request))
        self.fab = fab
        self.pulled = []
        self.pushed = []
        self.ended = []

    def PullTaskInput(self, _):  # noqa: N802
        run = SimpleNamespace(run_id=1, fab_id="evil/app", fab_version="1.0")
        context = SimpleNamespace(node_id=1)
        return SimpleNamespace(run=run, context=context, task_id=1, fab=self)

    @property
    def content(self):
        return self.fab

    def PullMessages(self, _):  # noqa: N802
        return SimpleNamespace(messages_list=[self.listed], message_object_trees=[self.tree])

    def PullObject(self, request):  # noqa: N802
        self.pulled.append(request.object_id)
        return SimpleNamespace(
            object_found=True,
            object_available=True,
            object_content=self.objects[request.object_id],
        )

    def ConfirmMessageReceived(self, _):  # noqa: N802
        return None

    def PushMessages(self, request):  # noqa: N802
        self.pushed.append(message_from_proto(request.messages_list[0]))
        return SimpleNamespace(session_id="s", objects_to_push=[])

    def PushObject(self, _):  # noqa: N802
        return SimpleNamespace(stored=True)

    def PushTaskOutput(self, request):  # noqa: N802
        self.ended.append((request.sub_status, request.details))

    def close(self):
        pass


@pytest.fixture
def asked(net, monkeypatch):
    """Returns a function that makes a SuperNode with a request of the given content."""
    monkeypatch.setattr(module, "run_from_proto", lambda run: run)

    def make(content, fab=None):
        request = Message(content, dst_node_id=1, message_type="train", ttl=5.0)
        request.metadata.__dict__["_message_id"] = request.object_id
        return Supernode(request, archive(own_files()) if fab is None else fab)

    return make


def test_a_request_of_cafedcl_is_answered(asked):
    node = asked(wrap({"a": b"1"}))
    with RuntimeTask(node, "token") as task:
        task.answer(lambda parts: {"got": parts["a"]})
    assert not node.pushed[0].has_error()
    assert node.ended == [("completed", "")]


def test_a_foreign_app_is_refused_before_its_message_is_read(asked):
    node = asked(wrap({"a": b"1"}), archive({"evil.py": b""}))
    with RuntimeTask(node, "token") as task, pytest.raises(RefusedError, match=r"evil/app 1\.0"):
        task.answer(pytest.fail)
    assert node.pulled == []
    assert "not the app of cafedcl" in node.pushed[0].error.reason
    assert node.ended[0][0] == "failed"


def test_a_message_that_is_not_ours_is_refused(asked):
    node = asked(RecordDict({"config": ConfigRecord({"run": "rm -r /"})}))
    with RuntimeTask(node, "token") as task, pytest.raises(RefusedError, match="not cafedcl's"):
        task.answer(pytest.fail)
    assert "its records are not packed ones" in node.pushed[0].error.reason


def test_a_request_whose_parts_never_come_is_given_up(asked, monkeypatch):
    """Its run was stopped; the next request is not kept waiting."""
    node = asked(wrap({"a": b"1"}))
    absent = SimpleNamespace(object_found=True, object_available=False, object_content=b"")
    node.PullObject = lambda _: absent
    monkeypatch.setattr(module, "ARRIVAL", -1.0)
    with RuntimeTask(node, "token") as task, pytest.raises(ObjectPullError, match="nothing came"):
        task.answer(pytest.fail)
    assert node.ended[0][0] == "failed"
    assert not node.pushed


class EnoughError(Exception):
    pass


class Tasks:
    """Plays the tasks of a Runtime API: what is raised or returned, one after another."""

    def __init__(self, *things):
        self.things = list(things)
        self.closed = 0

    def acquire(self, kinds):
        if not self.things:
            raise EnoughError
        thing = self.things.pop(0)
        if isinstance(thing, Exception):
            raise thing
        return thing

    def close(self):
        self.closed += 1


def test_a_worker_outlives_its_supernode_and_refused_tasks(asked, monkeypatch):
    monkeypatch.setattr(module, "RETRY", 0.0)
    monkeypatch.setattr(module, "PAUSE", 0.0)
    foreign = RuntimeTask(asked(wrap({"a": b"1"}), archive({"evil.py": b""})), "token")
    good = asked(wrap({"a": b"1"}))
    gone = httpx.ConnectError("no SuperNode")
    response = httpx.Response(401, request=httpx.Request("POST", "https://here"))
    refused = httpx.HTTPStatusError("401", request=response.request, response=response)
    tasks = Tasks(gone, None, foreign, refused, RuntimeTask(good, "token"))
    calls = []
    said = []

    def connect():
        calls.append(1)
        if len(calls) == 1:
            raise FileNotFoundError
        return tasks

    with pytest.raises(EnoughError):
        work_off(connect, lambda parts: parts, said.append)
    assert len(calls) == 3
    assert tasks.closed == 1
    assert good.ended == [("completed", "")]
    assert said[0].startswith("refused: evil/app 1.0")
    assert "given up" in said[1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ObjectPullError("id", "nothing came"), "never came in full"),
        (ObjectPushError("id", 1, "session"), "nobody took the answer"),
    ],
)
def test_a_worker_outlives_a_run_that_was_stopped(error, words, monkeypatch):
    monkeypatch.setattr(module, "RETRY", 0.0)
    said = []
    with pytest.raises(EnoughError):
        work_off(lambda: Tasks(error), lambda parts: parts, said.append)
    assert len(said) == 1
    assert words in said[0]
