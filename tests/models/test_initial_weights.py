import pytest
import torch
from safetensors.torch import save_file

from cafedcl.config.model_options import ModelOptions
from cafedcl.core.errors import CafedclError
from cafedcl.models import build_encoder, make_encoder
from cafedcl.models.initial_weights import freeze, load_weights

SHAPE = (1, 8, 8)
LAYERS = ("conv1", "conv2", "full")


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return build_encoder("cnn8", SHAPE, 0.5)


@pytest.fixture
def other():
    torch.manual_seed(1)
    return build_encoder("cnn8", SHAPE, 0.5).state_dict()


@pytest.mark.parametrize("prefix", ["", "backbone.", "module.encoder."])
def test_weights_are_loaded_whatever_their_prefix(prefix, encoder, other, tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({prefix + name: value for name, value in other.items()}, path)
    (note,) = load_weights(encoder, str(path))
    assert note.endswith("6 of the encoder's 6 weights are loaded")
    assert all(torch.equal(value, other[name]) for name, value in encoder.state_dict().items())


def test_what_does_not_match_is_told_in_one_line(encoder, other, tmp_path):
    path = tmp_path / "w.safetensors"
    before = encoder.full.weight.clone()
    del other["conv1.bias"]
    other["full.weight"] = torch.zeros(3, 3)
    save_file({**other, "fc.weight": torch.zeros(2)}, path)
    (note,) = load_weights(encoder, str(path))
    assert "4 of the encoder's 6 weights are loaded" in note
    assert "1 of another shape: full.weight" in note
    assert "1 missing in the file: conv1.bias" in note
    assert "1 unknown to the encoder: fc.weight" in note
    assert torch.equal(encoder.full.weight, before)
    assert torch.equal(encoder.conv1.weight, other["conv1.weight"])


def test_a_file_of_another_model_is_refused(encoder, tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.zeros(7)}, path)
    with pytest.raises(CafedclError, match="none of its 1 weights matches the encoder; it has a"):
        load_weights(encoder, str(path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("w.pt", b"x", "a file that ends in .safetensors is expected; convert weights of PyTorch"),
        ("none.safetensors", None, "there is no such file"),
        ("w.safetensors", b"x", "not a whole .safetensors file .*; copy or save it again$"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(name, content, words, encoder, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CafedclError, match=words):
        load_weights(encoder, str(tmp_path / name))


def test_the_ending_may_be_in_capitals_and_a_folder_is_no_file(encoder, other, tmp_path):
    save_file(other, tmp_path / "W.SAFETENSORS")
    assert "6 of the encoder's 6" in load_weights(encoder, str(tmp_path / "W.SAFETENSORS"))[0]
    (tmp_path / "w.safetensors").mkdir()
    with pytest.raises(CafedclError, match="it is a folder; name a file in it"):
        load_weights(encoder, str(tmp_path / "w.safetensors"))


def test_a_file_that_nobody_may_read_is_not_called_missing(encoder, other, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    save_file(other, tmp_path / "w.safetensors")
    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(CafedclError, match="cannot be read: Permission denied"):
        load_weights(encoder, str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w * torch.nan, "'full.weight' holds NaN or infinite numbers"),
        (lambda w: w.double() * 1e300, "'full.weight' holds NaN or infinite numbers"),
        (lambda w: w.to(torch.int8), "'full.weight' is of type torch.int8, and the encoder's is"),
        (lambda w: w.to(torch.complex64), "'full.weight' is of type torch.complex64"),
    ],
)
def test_weights_that_cannot_be_trained_are_refused(change, words, encoder, other, tmp_path):
    before = encoder.conv1.weight.clone()
    save_file({**other, "full.weight": change(other["full.weight"])}, tmp_path / "w.safetensors")
    with pytest.raises(CafedclError, match=words):
        load_weights(encoder, str(tmp_path / "w.safetensors"))
    assert torch.equal(encoder.conv1.weight, before)


def test_weights_of_another_precision_are_loaded(encoder, other, tmp_path):
    save_file({name: value.half() for name, value in other.items()}, tmp_path / "w.safetensors")
    load_weights(encoder, str(tmp_path / "w.safetensors"))
    assert torch.equal(encoder.full.weight, other["full.weight"].half().float())


def test_weights_are_not_read_where_others_will_be_loaded(tmp_path):
    chosen = ModelOptions(name="cnn8", weights=str(tmp_path / "gone.safetensors"))
    make_encoder(chosen, SHAPE, initial=False)
    with pytest.raises(CafedclError, match="there is no such file"):
        make_encoder(chosen, SHAPE)


@pytest.mark.parametrize(
    ("text", "frozen"),
    [
        ("", set()),
        ("conv1", {"conv1.weight", "conv1.bias"}),
        ("conv1, full.bias", {"conv1.weight", "conv1.bias", "full.bias"}),
        ("all", {f"{layer}.{kind}" for layer in LAYERS for kind in ("weight", "bias")}),
    ],
)
def test_weights_are_frozen_by_the_beginning_of_their_names(text, frozen, encoder):
    freeze(encoder, text)
    assert {name for name, p in encoder.named_parameters() if not p.requires_grad} == frozen


def test_a_name_that_freezes_nothing_is_refused(encoder):
    with pytest.raises(CafedclError, match="no weight of the encoder begins with 'conv'; did you"):
        freeze(encoder, "conv")
