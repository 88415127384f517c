"""What a site keeps of a run: its own model, which it can use and nobody else has."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from sites import HOLDS, settings
from typer.testing import CliRunner

from cafedcl.cli.main import app
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import OWN_MODEL
from cafedcl.deploy.site_memory import MemoryFolder, with_site
from cafedcl.federation import runs
from cafedcl.federation.run_folder import RunFolder

EXACT = {"release__fewest": 1, "release__counts": "exact"}


def site_folder(places: Path, name: str) -> Path:
    """The folder of a site, as `cafedcl deploy init` makes it."""
    folder = places / name
    folder.mkdir(exist_ok=True)
    (folder / "site.toml").touch()
    return folder


@pytest.mark.parametrize("method", ["fedavg", "cafedcl:best", "fedproto"])
def test_a_site_uses_the_model_that_was_scored_as_its_own(
    method, config, host, places, net, journal
):
    chosen = config(method, **settings(store__own=True, **EXACT))
    runs.start(chosen, journal.path, [], (), host)
    run = runs.load(journal.path)
    right = []
    for client, (node, name) in enumerate(zip((11, 12, 13), HOLDS, strict=True)):
        here, number = with_site(run, site_folder(places, name))
        assert number == client
        data = net.sites[node][0]._engine[1].task.clients.data
        found = here.predict(data.test_x, client=number).labels
        right.append(float((found == data.test_y).double().mean()))
    assert run.records[-1]["own"]["accuracy"] == pytest.approx(sum(right) / 3)


def test_the_server_does_not_store_the_models_of_sites(config, host, places, journal):
    runs.start(config(**settings(store__own=True)), journal.path, [], (), host)
    for file in RunFolder(journal.path).checkpoints():
        assert OWN_MODEL.encode() + b"model/" not in file.read_bytes()
    with pytest.raises(CafedclError, match=r"a: its model is stored at its site; .*--site"):
        runs.load(journal.path).network(0)


def test_a_stored_model_changes_nothing_in_the_next_round(config, host, places, net, journal):
    plain = host(config("moon", **settings()), [], None)
    plain.run()
    storing = host(config("moon", **settings(store__own=True)), [], None)
    storing.run()
    assert all(torch.equal(value, storing.state[name]) for name, value in plain.state.items())


def test_what_a_site_lacks_is_one_line(config, host, places, journal):
    runs.start(config("fedavg", **settings(federation__rounds=1)), journal.path, [], (), host)
    run = runs.load(journal.path)
    with pytest.raises(CafedclError, match=r"it keeps no model of the run .* store\.own = true"):
        with_site(run, site_folder(places, "a"))
    with pytest.raises(CafedclError, match=r"nowhere: no folder of a site"):
        with_site(run, places / "nowhere")


def test_a_site_that_took_part_in_no_round_has_no_model(config, host, places, journal):
    once = settings(federation__rounds=1, federation__participation=0.3, store__own=True)
    runs.start(config("fedavg", **once), journal.path, [], (), host)
    run = runs.load(journal.path)
    ((there, _),) = run.memories.items()
    for client, name in enumerate(HOLDS):
        folder = site_folder(places, name)
        if client == there:
            assert with_site(run, folder)[1] == there
        else:
            with pytest.raises(CafedclError, match="the site took part in no round"):
                with_site(run, folder)


def test_a_run_on_one_machine_has_no_sites(tiny, places):
    federation = tiny("fedavg")
    federation.run()
    with pytest.raises(CafedclError, match="no run of a deployment; leave out --site"):
        with_site(runs._result(federation, None), site_folder(places, "a"))


def test_memories_of_two_sites_in_one_folder_are_refused(config, host, places, journal):
    chosen = config("fedproto", **settings(federation__rounds=1))
    runs.start(chosen, journal.path, [], (), host)
    (other,) = (places / "b" / "memory").glob("*/1")
    (mine,) = (places / "a" / "memory").glob("*")
    other.rename(mine / "1")
    with pytest.raises(CafedclError, match="is of several sites"):
        with_site(runs.load(journal.path), site_folder(places, "a"))


def test_a_lost_memory_is_one_line(config, host, places, journal):
    runs.start(config("fedproto", **settings(federation__rounds=1)), journal.path, [], (), host)
    (file,) = (places / "a" / "memory").glob("*/0/*.safetensors")
    file.write_bytes(b"not a model")
    with pytest.raises(CafedclError, match=r"000000\.safetensors: cannot be read"):
        with_site(runs.load(journal.path), site_folder(places, "a"))


def test_on_the_command_line(config, host, places, journal):
    runs.start(config("fedproto", **settings(federation__rounds=1)), journal.path, [], (), host)
    Image.fromarray(torch.zeros(8, 8, dtype=torch.uint8).numpy()).save(places / "x.png")

    def call(*words: object) -> tuple[int, str]:
        ran = CliRunner().invoke(app, [str(word) for word in words])
        return ran.exit_code, f"{ran.output}{ran.exception or ''}"

    image: Path = places / "x.png"
    code, out = call("predict", journal.path, image, "--site", site_folder(places, "b"))
    assert code == 0, out
    assert "x.png" in out
    code, out = call(
        "predict", journal.path, image, "--site", site_folder(places, "b"), "--client", "b"
    )
    assert code
    assert "--site: it says which client it is; leave out --client" in out
    model = places / "own.safetensors"
    assert call("export", journal.path, "--site", site_folder(places, "c"), "--out", model)[0] == 0
    assert model.is_file()


def saved(folder: MemoryFolder) -> set[int]:
    return {int(file.stem) for file in folder.folder.glob("*.safetensors")}


def test_the_memory_that_the_server_counted_last_is_never_deleted(tmp_path):
    """Replies of rounds 3 to 19 are not counted: the server still has the ticket of round 2."""
    folder = MemoryFolder(tmp_path / "memory")
    ticket = {}
    for round in range(3):
        ticket = folder.save(round, {"x": torch.tensor([round])}, 4, ticket)
    for round in range(3, 20):
        folder.save(round, {"x": torch.tensor([round])}, 4, ticket)
    assert saved(folder) == {2, 19}
    assert folder.load(ticket)["x"].tolist() == [2]
    # Counted again: rounds that a resumed run may go back to stay, and one from before.
    for round in range(20, 30):
        ticket = folder.save(round, {"x": torch.tensor([round])}, 4, ticket)
    assert saved(folder) == {24, 25, 26, 27, 28, 29}
