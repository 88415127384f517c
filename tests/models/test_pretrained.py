"""Pretrained encoders. Tiny models of transformers are built here and saved; nothing is loaded
from the network.
"""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from capturing import assert_near, captured
from safetensors.torch import load_file, save_file
from torch import nn

import cafedcl
from cafedcl.config.model_options import ModelOptions
from cafedcl.config.options import read_options
from cafedcl.core.errors import CafedclError
from cafedcl.engine.cpu.groups import stacking_obstacle
from cafedcl.engine.cuda.engine import capture_obstacle
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder
from cafedcl.federation.runs import change_config
from cafedcl.models import MODELS, feature_dim, make_encoder
from cafedcl.models.pretrained import IMAGENET_MEAN, Normalisation, PretrainedEncoder
from cafedcl.task.build import prepare
from cafedcl.task.resolve import imported_names, resolve

MEAN = [0.1, 0.2, 0.3]
STD = [0.5, 0.25, 0.2]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders of a tiny ViT and a tiny ResNet, as `save_pretrained` writes them."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    vit = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
    )
    resnet = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic"
    )
    folder = tmp_path_factory.mktemp("models")
    for name, config in {"vit": vit, "resnet": resnet}.items():
        transformers.AutoModel.from_config(config).save_pretrained(folder / name)
    about = {"image_mean": MEAN, "image_std": STD, "size": {"shortest_edge": 24}}
    (folder / "resnet" / "preprocessor_config.json").write_text(json.dumps(about))
    return folder


def options(folder, name, **more):
    return ModelOptions(name=f"hf:{folder / name}", **more)


def test_features_are_those_of_the_model(saved):
    import transformers

    encoder, notes = make_encoder(options(saved, "vit"), (3, 16, 16))
    assert feature_dim(encoder, (3, 16, 16)) == 16
    x = torch.randn(2, 3, 16, 16)
    model = transformers.AutoModel.from_pretrained(saved / "vit").eval()
    expected = model(pixel_values=x).last_hidden_state[:, 0]
    assert torch.equal(encoder.eval()(x), expected)
    assert not notes
    encoder, _ = make_encoder(options(saved, "resnet"), (3, 24, 24))
    x = torch.randn(2, 3, 24, 24)
    model = transformers.AutoModel.from_pretrained(saved / "resnet").eval()
    assert torch.equal(encoder.eval()(x), model(pixel_values=x).pooler_output.flatten(1))


def test_published_weights_are_optional(saved):
    def weights(**more):
        encoder, _ = make_encoder(options(saved, "vit", **more), (3, 16, 16))
        return encoder.state_dict()["net.model.embeddings.cls_token"]

    assert torch.equal(weights(), weights())
    torch.manual_seed(1)
    assert not torch.equal(weights(), weights(pretrained=False))


def test_an_encoder_has_its_own_normalisation_and_size(saved):
    encoder, notes = make_encoder(options(saved, "resnet"), (3, 12, 12))
    assert encoder.mean.flatten().tolist() == pytest.approx(MEAN)
    assert encoder.std.flatten().tolist() == pytest.approx(STD)
    assert encoder.size == 24
    assert "images of 12×12 are resized to 24×24" in notes[0]
    encoder, notes = make_encoder(options(saved, "resnet", size=12), (3, 12, 12))
    assert encoder.size == 12
    assert len(notes) == 1


def test_a_grey_image_is_the_same_image_in_colour():
    net = nn.Identity()
    normalisation = Normalisation(tuple(MEAN), tuple(STD), 4)
    colour = PretrainedEncoder(net, normalisation, (3, 4, 4), frozen_norms=True)
    grey = PretrainedEncoder(net, normalisation, (1, 4, 4), frozen_norms=True)
    x = torch.rand(2, 1, 4, 4)
    expected = colour((x.expand(-1, 3, -1, -1) - colour.mean) / colour.std)
    torch.testing.assert_close(grey((x - grey.mean) / grey.std), expected)
    with pytest.raises(CafedclError, match="images of 2 channels"):
        PretrainedEncoder(net, normalisation, (2, 4, 4), frozen_norms=True)


@pytest.mark.parametrize("side", [3, 4, 9])
def test_images_are_resized(side):
    shape = (3, side, side)
    encoder = PretrainedEncoder(nn.Identity(), Normalisation(size=4), shape, frozen_norms=True)
    assert encoder(torch.zeros(2, 3, side, side)).shape == (2, 3, 4, 4)


def test_statistics_of_batch_normalisation_are_frozen_unless_asked(saved):
    frozen, notes = make_encoder(options(saved, "resnet"), (3, 24, 24))
    assert any("batch normalisations keep the statistics" in note for note in notes)
    trained, notes = make_encoder(options(saved, "resnet", batchnorm="trained"), (3, 24, 24))
    assert not notes
    for encoder, changes in ((frozen, False), (trained, True)):
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        encoder.train()(torch.randn(4, 3, 24, 24))
        after = encoder.state_dict()
        assert changes == any(not torch.equal(before[name], after[name]) for name in before)
        assert (capture_obstacle(encoder) is not None) == changes


@pytest.fixture
def federation(saved, digits):
    def make(method="fedavg", model="resnet", **settings):
        tables = {
            "method": {"name": method},
            "model": {"name": f"hf:{saved / model}", "size": 16},
            "train": {"epochs": 1, "iterations": 1},
            "federation": {"clients": 4, "participation": 0.5, "rounds": 1},
            "split": {"kind": "iid"},
            "engine": {"device": "cpu", "workers": 1},
            "data": {"images": 40},
        }
        for path, value in settings.items():
            section, _, key = path.partition("__")
            tables[section][key] = value
        return Federation(prepare(resolve(tables), digits.reduced(40)))

    return make


def test_a_round_trains_a_pretrained_encoder(federation, capsys):
    made = federation(train__encoder_lr=0.01)
    assert stacking_obstacle(made.task) is not None
    # The run's pixels are standardised as the encoder expects.
    mean = float(made.task.clients.data.mean)
    assert mean == pytest.approx(sum(MEAN) / 3)
    assert "batch normalisations keep" in capsys.readouterr().err
    start = {name: value.clone() for name, value in made.state.items()}
    record = made.step()
    assert not record.failed
    changed = {name for name in start if not torch.equal(start[name], made.state[name])}
    assert any(name.startswith("model/encoder.net.") for name in changed)
    assert not any("running" in name for name in changed)


@pytest.mark.parametrize("model", ["vit", "resnet"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_steps_train_it_too(federation, model, precision):
    one = federation(model=model)
    other = captured(federation(model=model), precision=precision)
    assert not one.step().failed
    assert not other.step().failed
    within = 1e-4 if precision == "fp32" else 0.1
    assert_near(one.state, other.state, within)


def test_a_frozen_encoder_stays_as_it_is(federation):
    made = federation(model__freeze="all", model="vit")
    start = {name: value.clone() for name, value in made.state.items()}
    assert not made.step().failed
    changed = {name for name in start if not torch.equal(start[name], made.state[name])}
    assert changed == {"model/head.weight", "model/head.bias"}


def test_a_run_is_used_without_the_folder_that_its_encoder_came_from(saved, digits, tmp_path):
    origin = tmp_path / "origin"
    shutil.copytree(saved / "resnet", origin)
    settings = {"model.size": 16, "train.epochs": 1, "train.iterations": 1, "data.images": 40}
    flags = {"clients": 2, "rounds": 1, "split": "iid", "device": "cpu", "model": f"hf:{origin}"}
    result = cafedcl.run("fedavg", out=tmp_path / "run", settings=settings, **flags)
    expected = result.predict(digits.test_x[:5])
    shutil.rmtree(origin)
    assert {file.name for file in (tmp_path / "run" / "encoder").iterdir()} == {
        "config.json",
        "preprocessor_config.json",
    }
    found = cafedcl.load(tmp_path / "run").predict(digits.test_x[:5])
    assert torch.equal(found.similarity, expected.similarity)


def test_a_run_is_not_resumed_with_an_encoder_that_is_built_differently(saved, tmp_path):
    origin = tmp_path / "origin"
    shutil.copytree(saved / "resnet", origin)
    settings = {"model.size": 16, "train.epochs": 1, "train.iterations": 1, "data.images": 40}
    flags = {"clients": 2, "rounds": 1, "split": "iid", "device": "cpu", "model": f"hf:{origin}"}
    cafedcl.run("fedavg", out=tmp_path / "run", settings=settings, **flags)
    change_config(RunFolder.open(tmp_path / "run"), ["federation.rounds=2"])
    config = json.loads((origin / "config.json").read_text())
    assert config["hidden_act"] == "relu"
    (origin / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    with pytest.raises(CafedclError, match=r"'hidden_act' in config\.json differs"):
        cafedcl.resume(tmp_path / "run")


def test_a_method_without_a_head_cannot_freeze_its_encoder(federation):
    with pytest.raises(CafedclError, match="trains nothing but the encoder"):
        federation("cafedcl", model__freeze="all")


def test_a_method_without_a_head_needs_an_encoder_with_weights(federation, monkeypatch):
    monkeypatch.setitem(MODELS, "bare", lambda *_: nn.Flatten())
    with pytest.raises(
        CafedclError, match="model 'bare': it has no weights, and the method cafedcl"
    ):
        federation("cafedcl", model__name="bare", model__size=0)


def test_what_cannot_be_loaded_is_told_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CafedclError, match="model 'hf:") as caught:
        make_encoder(ModelOptions(name=f"hf:{tmp_path}"), (3, 8, 8))
    assert "\n" not in str(caught.value)
    with pytest.raises(CafedclError, match="there is no such folder"):
        make_encoder(ModelOptions(name=f"hf:{tmp_path / 'vit'}"), (3, 8, 8))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda given: {name: value * torch.nan for name, value in given.items()}, "hold NaN"),
        (lambda _: {"a": torch.zeros(3)}, "none of the weights in its file are of this"),
    ],
)
def test_published_weights_that_are_useless_are_refused(change, words, saved, tmp_path):
    shutil.copytree(saved / "vit", tmp_path / "vit")
    file = tmp_path / "vit" / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    with pytest.raises(CafedclError, match=words):
        make_encoder(options(tmp_path, "vit"), (3, 8, 8))
    make_encoder(options(tmp_path, "vit", pretrained=False), (3, 8, 8))


def test_a_normalisation_by_zero_is_refused(saved, tmp_path):
    shutil.copytree(saved / "resnet", tmp_path / "resnet")
    about = {"image_mean": MEAN, "image_std": [0.0, 0.5, 0.5]}
    (tmp_path / "resnet" / "preprocessor_config.json").write_text(json.dumps(about))
    with pytest.raises(CafedclError, match="its normalisation divides by 0"):
        make_encoder(options(tmp_path, "resnet"), (3, 8, 8))


def test_a_size_that_a_vit_does_not_take_is_one_line(saved, federation):
    with pytest.raises(CafedclError, match=r"model 'hf:.*: it fails on images of .* match model"):
        federation("fedavg", model__name=f"hf:{saved / 'vit'}", model__size=24)


@pytest.mark.parametrize("source", ["timm", "torchvision", "hf"])
def test_a_missing_package_is_named(source, monkeypatch):
    package = {"hf": "transformers"}.get(source, source)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CafedclError, match=f"{package}.*install the extra {package}: pip install"):
        make_encoder(ModelOptions(name=f"{source}:x"), (3, 8, 8))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "hf:x", "width": 2.0}, "width = 2: 'hf:x' has a width of its own"),
        ({"name": "cnn4", "size": 9}, "size = 9: only timm:, torchvision: and hf: models"),
        ({"name": "cnn4", "pretrained": False}, "pretrained = false: only timm:"),
        ({"batchnorm": "trained"}, "'auto' does not"),
    ],
)
def test_options_that_an_encoder_would_ignore_are_refused(table, words):
    with pytest.raises(CafedclError, match=words):
        read_options(ModelOptions, table, "model")


def test_pretrained_models_import_no_foreign_code():
    assert imported_names({"model": {"name": "timm:resnet18"}}) == []
    assert imported_names({"model": {"name": "own:make"}}) == ["own:make"]


def test_the_last_layer_of_a_torchvision_model_is_taken_off(monkeypatch):
    """With a stand-in of the package; the real one is tested below where it is installed."""
    expected = SimpleNamespace(mean=MEAN, std=STD, crop_size=[8])
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: expected))
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Sequential(nn.ReLU(), nn.Linear(5, 9)))
    models = SimpleNamespace(
        get_model_weights=lambda name: weights, get_model=lambda name, weights: net
    )
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))
    encoder, _ = make_encoder(ModelOptions(name="torchvision:small"), (3, 8, 8))
    assert feature_dim(encoder, (3, 8, 8)) == 5
    assert encoder.size == 8


@pytest.mark.parametrize("name", ["resnet18", "vit_b_16", "efficientnet_b0"])
def test_torchvision_models(name):
    pytest.importorskip("torchvision", exc_type=ImportError)
    chosen = ModelOptions(name=f"torchvision:{name}", pretrained=False)
    encoder, _ = make_encoder(chosen, (3, 32, 32))
    assert encoder.mean.flatten().tolist() == pytest.approx(IMAGENET_MEAN)
    assert feature_dim(encoder, (3, 32, 32)) in (512, 768, 1280)


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_timm_models(name):
    pytest.importorskip("timm", exc_type=ImportError)
    encoder, _ = make_encoder(ModelOptions(name=f"timm:{name}", pretrained=False), (1, 32, 32))
    assert feature_dim(encoder, (1, 32, 32)) in (512, 192)
