"""What a site does not do, whatever a server asks, and what it does not tell."""

import pytest
from PIL import Image
from sites import HOLDS, settings

from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import pack, unpack
from cafedcl.deploy.flower.messages import enrol_request
from cafedcl.deploy.flower.records import OWN, SHARED, unwrap
from cafedcl.deploy.flower.site import Site
from cafedcl.deploy.rules import SiteRules
from cafedcl.methods import find_method, method_names

METHODS = [name for name in method_names() if not find_method(name)[0].pooled]


@pytest.mark.parametrize(
    ("rules", "asked", "reason"),
    [
        (SiteRules(fewest=5), {"release__fewest": 2}, "this site reports those with 5 at least"),
        (SiteRules(details=False), {"release__counts": "exact"}, "release.counts = exact"),
        (SiteRules(details=False), {"release__notes": "on"}, "release.notes = on"),
        (SiteRules(secure=True), {}, "takes part in secure sums only"),
        (SiteRules(details=False, grid=10), {"release__grid": 1}, "to multiples of 10 at least"),
    ],
)
def test_a_site_has_the_last_word(rules, asked, reason, config, host, places, net):
    net.sites[11][0].rules = rules
    with pytest.raises(CafedclError, match="2 of 3 sites"):
        host(config("fedavg", **settings(**asked, engine__deadline=0.3)), [], None)
    request = {SHARED: enrol_request(config("fedavg", **settings(**asked)))}
    _, header = unpack(net.sites[11][0].answer(request, None)[OWN])
    assert reason in header["error"]
    # The defaults of a run go with the defaults of a site.
    usual = SiteRules(fewest=5, details=False, grid=10)
    assert usual.problem(config("fedavg", **settings())) is None


def test_a_method_that_reveals_more_needs_details(config):
    refusing = SiteRules(fewest=5, details=False, grid=10)
    refused = {
        name: problem
        for name in METHODS
        if (problem := refusing.problem(config(name, **settings()))) is not None
    }
    assert refused.keys() == {"ccvr", "mp-fedcl", "scaffold"}
    assert "covariances, whose rank tells how many images" in refused["ccvr"]
    for name in refused:
        assert SiteRules().problem(config(name, **settings())) is None


@pytest.fixture
def trained(config, host, places, net):
    """The request to train that the first site got, and its header."""
    host(config("cafedcl", **settings(federation__rounds=1)), [], None).run()
    request = next(
        unwrap(message.content)
        for message in net.seen
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 11
    )
    return request, unpack(request[SHARED])


@pytest.mark.parametrize("place", [True, False])
@pytest.mark.parametrize("data", ["digits", "b.npz"])
def test_a_server_cannot_choose_other_data_or_rules_than_those_of_own_data(
    data, place, trained, net, places
):
    """All limits follow from the data set's name, which the server sends."""
    request, (tensors, header) = trained
    site = net.sites[11][0]
    site.rules = SiteRules(fewest=5, details=False, grid=10)
    named = data if data == "digits" else str(places / data)
    header["terms"]["config"]["data"]["name"] = named
    header["terms"]["config"]["release"] = {"fewest": 1, "counts": "exact", "notes": "on"}
    if not place:
        header["terms"]["place"] = None
    answer = site.answer({**request, SHARED: pack(tensors, header)}, None)
    told = unpack(answer[OWN])[1]["error"]
    assert told == (
        f"the run's data set is '{named}', but this site has its own data; a run that is to use it "
        "needs data.name = sites"
    )


def test_a_server_cannot_leave_out_where_a_client_stands(trained, net):
    request, (tensors, header) = trained
    header["terms"]["place"] = None
    answer = net.sites[11][0].answer({**request, SHARED: pack(tensors, header)}, None)
    assert "does not fit together" in unpack(answer[OWN])[1]["error"]


def test_a_site_writes_nothing_into_a_folder_that_the_server_names(config, net, places):
    """The features of a frozen encoder are stored in the folder of data files."""
    asked = config("fedavg", **settings(data__dir="/elsewhere", data__test="/other/test.npz"))
    taken = net.sites[11][0]._allowed(asked.to_plain())
    assert (taken.data.dir, taken.data.test) == ("", "")


@pytest.mark.parametrize(("section", "key"), [("data", "name"), ("data", "dir"), ("split", "file")])
def test_a_simulated_site_reads_no_file_that_the_server_names(section, key, config, tmp_path):
    _, header = unpack(enrol_request(config()))
    table = {} if section == "split" else header["terms"]["config"][section]
    kind = {"kind": "file"} if section == "split" else {}
    header["terms"]["config"][section] = {**table, **kind, key: "/data/pictures"}
    site = Site(tmp_path, "a", "", "cpu")
    said = unpack(site.answer({SHARED: pack({}, header)}, 0)[OWN])[1]
    assert "the server wants to read '/" in said["error"]


@pytest.mark.parametrize("details", [False, True])
def test_an_error_that_names_a_patient_stays_at_the_site(details, config, places, net, capsys):
    table = places / "patients.csv"
    table.write_text("file,label,patient,split\na.png,x,P0,train\nb.png,y,P0,test\n")
    for name in ("a.png", "b.png"):
        Image.new("L", (8, 8)).save(places / name)
    site = Site(places / "d", "d", str(table), "cpu", rules=SiteRules(details=details))
    for _ in range(2):
        request = {SHARED: enrol_request(config("fedavg", **settings()))}
        told = unpack(site.answer(request, None)[OWN])[1]["error"]
        assert ("P0" in told, "patients.csv" in told) == (details, details)
    whole = capsys.readouterr().err
    assert whole.startswith(f"error: {table}: patient 'P0' has images in training and in test")
    assert whole.count("\n") == 1, "what is asked again is said once"
    if not details:
        assert told == (
            "its data and this run do not fit; the whole error is in the site's worker.log"
        )


@pytest.mark.parametrize(
    ("error", "told", "whole"),
    [
        (OSError("/P0.dcm: gone"), "OSError", "OSError: /P0.dcm: gone"),
        (CafedclError("/P0.dcm: gone"), "its data and this run do not fit", "/P0.dcm: gone"),
    ],
    ids=["unexpected", "for people"],
)
def test_an_error_in_training_stays_at_the_site(
    error, told, whole, config, host, places, net, capsys, monkeypatch
):
    for site, _ in net.sites.values():
        site.rules = SiteRules(fewest=5, details=False)

    def torn(*_):
        raise error

    federation = host(config("fedavg", **settings()), [], None)
    monkeypatch.setattr("cafedcl.engine.reference.ReferenceEngine.work", torn)
    record = federation.step()
    reasons = {failure["reason"] for failure in record.failed}
    assert reasons == {
        f"its answer cannot be used: {told}; the whole error is in the site's worker.log"
    }
    assert f"error: {whole}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "code"), [("method", "tests.own:Mine"), ("model", "os.path:join")]
)
def test_a_server_cannot_name_code_at_a_site_that_does_not_allow_it(
    section, code, config, net, places, monkeypatch
):
    """The config that a hostile server sends names something that can be imported."""
    imported = []
    for module in ("cafedcl.methods", "cafedcl.models"):
        monkeypatch.setattr(f"{module}.import_path", lambda name, _: imported.append(name))
    _, header = unpack(enrol_request(config(**settings())))
    header["terms"]["config"][section] = {"name": code}
    answer = net.sites[11][0].answer({SHARED: pack({}, header)}, None)
    _, said = unpack(answer[OWN])
    assert "allow it with plugins = true" in said["error"]
    assert imported == []


@pytest.mark.parametrize(
    "model",
    [{"weights": "/data/secret.safetensors"}, {"name": "hf:/data/model"}, {"name": "hf:../model"}],
)
def test_a_server_cannot_read_a_file_of_a_site_as_weights(model, config, net, places):
    _, header = unpack(enrol_request(config(**settings())))
    header["terms"]["config"]["model"] = model
    answer = net.sites[11][0].answer({SHARED: pack({}, header)}, None)
    _, said = unpack(answer[OWN])
    assert "the server wants to read" in said["error"]
    assert "allow it with plugins = true" in said["error"]


def test_a_site_with_other_frozen_weights_takes_no_part(config, host, places, net, monkeypatch):
    chosen = config("fedavg", **settings(model__freeze="all", federation__rounds=2))
    made = host(chosen, [], None)
    with monkeypatch.context() as other_files:
        other_files.setattr("cafedcl.deploy.flower.site.frozen_digest", lambda _task: "other")
        record = made.step()
    reasons = [failure["reason"] for failure in record.failed]
    assert len(reasons) == len(HOLDS)
    assert all("frozen weights of the encoder 'mlp'" in reason for reason in reasons)
    assert not made.step().failed
