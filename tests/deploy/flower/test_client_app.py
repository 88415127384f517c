"""The Flower client of a simulation."""

from types import SimpleNamespace

from flwr.app import Message

from cafedcl.deploy.flower import client_app
from cafedcl.deploy.flower.messages import enrol_request, read_plain
from cafedcl.deploy.flower.records import SHARED, unwrap, wrap


def test_a_simulated_client_answers_as_the_site_of_its_node(net, tmp_path, monkeypatch, config):
    monkeypatch.setattr(client_app, "_sites", [])
    asked = Message(
        wrap({SHARED: enrol_request(config())}), dst_node_id=1, message_type="query", ttl=5.0
    )
    context = SimpleNamespace(node_config={"partition-id": 4}, run_config={"out": str(tmp_path)})
    answer = client_app.answer(asked, context)
    assert read_plain(unwrap(answer.content)) == ({}, {"client": 4})
    assert client_app._sites[0].home == tmp_path / "sites"
