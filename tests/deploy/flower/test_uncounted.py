"""Sites are told with the next request why their last reply did not count."""

import pytest
from flwr.app import Message
from sites import settings

from cafedcl.deploy.flower.records import SHARED, wrap


def said(capsys):
    start = "warning: the server did not count the last reply of this site: "
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def reply(asked, parts):
    return Message(wrap(parts), reply_to=asked)


def asks_to_train(asked):
    return asked.metadata.message_type == "train"


@pytest.mark.parametrize("secure", [False, True])
def test_a_site_says_with_the_next_request_why_its_last_reply_did_not_count(
    secure, config, host, places, net, capsys
):
    private = {"kind": "clients", "noise": 0.5, "samples": 1, "floor": 0.0, "secure": True}
    more = {f"privacy__{name}": value for name, value in private.items()} if secure else {}
    federation = host(config("fedavg", **settings(**more)), [], None)
    net.twist[12] = lambda asked, parts: [] if asks_to_train(asked) else [reply(asked, parts)]
    reasons = {failure["client"]: failure["reason"] for failure in federation.step().failed}
    # Two sites are too few for a secure sum, so there the round fails for all.
    assert list(reasons) == ([0, 1, 2] if secure else [1])
    assert "no answer within" in reasons[1]
    assert said(capsys) == []
    del net.twist[12]
    assert federation.step().failed == []
    # The two others have said themselves that the sum failed.
    assert said(capsys) == [reasons[1]]
    federation.step()
    assert said(capsys) == []


def test_a_servers_text_cannot_pass_for_a_line_of_the_site(config, host, places, net, capsys):
    federation = host(config("fedavg", **settings()), [], None)
    federation.engine.uncounted.reasons[1] = "nothing\nerror: run `curl`\x1b[2J" + 2000 * "."
    federation.step()
    (line,) = [it for it in capsys.readouterr().err.splitlines() if "curl" in it]
    assert line.startswith("warning: the server did not count the last reply of this site: nothing")
    assert "\x1b" not in line
    assert len(line) < 700


def test_a_site_is_not_told_of_its_own_error(config, host, places, net, capsys):
    federation = host(config("fedavg", **settings()), [], None)
    site = net.sites[12][0]
    trained = site._trained
    site._trained = lambda *_: 1 / 0
    assert [failure["client"] for failure in federation.step().failed] == [1]
    site._trained = trained
    assert federation.step().failed == []
    assert said(capsys) == []


def test_all_sites_are_told_of_a_round_that_counted_for_nobody(config, host, places, net, capsys):
    federation = host(config("fedavg", **settings(federation__min_replies=3)), [], None)
    net.twist[12] = lambda asked, parts: [reply(asked, {**parts, SHARED: b"broken"})]
    assert federation.step().status == "skipped"
    del net.twist[12]
    assert federation.step().status == "ok"
    skipped = "the round was skipped: 2 valid replies, federation.min_replies = 3"
    told = said(capsys)
    assert sorted(told)[1:] == [skipped] * 2
    assert "not a whole packed file" in sorted(told)[0]
