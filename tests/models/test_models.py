import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cafedcl.config.model_options import ModelOptions
from cafedcl.core.errors import CafedclError
from cafedcl.models import MODELS, Network, auto_model, build_encoder, feature_dim, place_of_model
from cafedcl.task.cost import operations

SMALL = ("cnn4", "cnn8", "mlp")


def before_relu(encoder, x):
    return Network(encoder, nn.Identity()).levels(x)[0][-1]


def parameters(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("channels", "count"), [(3, 11_168_832), (1, 11_167_680)])
def test_resnet18_has_the_paper_number_of_parameters(channels, count):
    with torch.device("meta"):
        encoder = build_encoder("resnet18", (channels, 32, 32), 1.0)
    assert parameters(encoder) == count
    assert encoder.dim == 512


def test_resnet18_has_five_levels_that_halve_and_double():
    with torch.device("meta"):
        levels = build_encoder("resnet18", (3, 32, 32), 1.0).stages(torch.zeros(2, 3, 32, 32))
    assert [tuple(level.shape[1:]) for level in levels] == [
        (64, 32, 32),
        (64, 32, 32),
        (128, 16, 16),
        (256, 8, 8),
        (512, 4, 4),
    ]


def test_resnet8_has_three_stages_of_one_block_and_256_features():
    with torch.device("meta"):
        encoder = build_encoder("resnet8", (3, 32, 32), 1.0)
        levels = encoder.stages(torch.zeros(2, 3, 32, 32))
    shapes = [tuple(level.shape[1:]) for level in levels]
    assert shapes == [(64, 32, 32), (64, 32, 32), (128, 16, 16), (256, 8, 8)]
    assert len(encoder.blocks) == 3
    assert encoder.dim == 256
    assert sum(isinstance(module, nn.Conv2d) for module in encoder.modules()) == 9


def test_resnet18_normalises_by_groups_of_two_and_has_no_batch_norm():
    encoder = build_encoder("resnet18", (1, 8, 8), 0.1)
    norms = [module for module in encoder.modules() if "Norm" in type(module).__name__]
    assert len(norms) == 20
    assert all(isinstance(norm, nn.GroupNorm) and norm.num_groups == 2 for norm in norms)


def test_a_resnet_block_adds_its_shortcut_and_leaves_the_relu_to_the_next():
    encoder = build_encoder("resnet18", (1, 8, 8), 0.05).double()
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    a = nn.functional
    h = a.group_norm(
        a.conv2d(x, encoder.conv.weight, padding=1), 2, encoder.norm.weight, encoder.norm.bias
    )
    assert len(encoder.blocks) == 8
    for i, block in enumerate(encoder.blocks):
        stride = 2 if i in (2, 4, 6) else 1
        h = torch.relu(h)
        inner = a.conv2d(h, block.conv1.weight, stride=stride, padding=1)
        inner = torch.relu(a.group_norm(inner, 2, block.norm1.weight, block.norm1.bias))
        inner = a.group_norm(
            a.conv2d(inner, block.conv2.weight, padding=1), 2, block.norm2.weight, block.norm2.bias
        )
        if stride == 2:
            conv, norm = block.shortcut
            h = a.group_norm(a.conv2d(h, conv.weight, stride=2), 2, norm.weight, norm.bias)
        h = h + inner
    torch.testing.assert_close(before_relu(encoder, x), h.mean((2, 3)))


@pytest.mark.parametrize("name", [*SMALL, "resnet18"])
def test_features_before_the_relu_have_negatives_and_after_it_none(name):
    torch.manual_seed(0)
    encoder = build_encoder(name, (1, 16, 16), 0.1 if name == "resnet18" else 1.0)
    x = torch.randn(6, 1, 16, 16)
    last = encoder.stages(x)[-1]
    before = before_relu(encoder, x)
    after = encoder(x)
    assert (before < 0).any()
    assert (after >= 0).all()
    space = tuple(range(2, last.dim()))
    torch.testing.assert_close(before, last.mean(space) if space else last)
    torch.testing.assert_close(after, last.clamp_min(0).mean(space) if space else last.clamp_min(0))
    assert (after >= before - 1e-6).all()


@pytest.mark.parametrize("name", [*SMALL, "resnet18"])
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 17, 20)])
def test_every_model_gives_its_features_for_any_image_and_batch(name, shape):
    encoder = build_encoder(name, shape, 0.1)
    assert feature_dim(encoder, shape) == encoder.dim
    assert encoder(torch.zeros(1, *shape)).shape == (1, encoder.dim)
    assert encoder.training


@pytest.mark.parametrize(
    ("name", "dim"), [("cnn4", 512), ("cnn8", 64), ("mlp", 64), ("resnet18", 512)]
)
@pytest.mark.parametrize("width", [0.5, 2.0])
def test_width_multiplies_the_features(name, dim, width):
    with torch.device("meta"):
        assert build_encoder(name, (1, 16, 16), width).dim == dim * width
        assert build_encoder(name, (1, 16, 16), 1e-6).dim >= 1


@pytest.mark.parametrize("name", ["cnn8", "mlp", "resnet18"])
def test_models_for_small_images_take_them(name):
    assert build_encoder(name, (1, 8, 8), 0.1)(torch.zeros(2, 1, 8, 8)).shape[0] == 2


def test_cnn4_has_the_parameters_of_its_four_layers():
    conv1 = 3 * 32 * 25 + 32
    conv2 = 32 * 64 * 25 + 64
    with torch.device("meta"):
        assert (
            parameters(build_encoder("cnn4", (3, 32, 32), 1.0)) == conv1 + conv2 + 1600 * 512 + 512
        )


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((3, 32, 32), "resnet18"),
        ((1, 28, 16), "resnet18"),
        ((1, 8, 40), "cnn8"),
        ((3, 64, 64), "resnet18"),
        ((3, 65, 65), "resnet18-7x7"),
        ((3, 224, 224), "resnet18-7x7"),
    ],
)
def test_auto_goes_by_the_size_of_the_images(shape, name):
    assert auto_model(shape) == name


def test_the_resnet_for_large_images_costs_a_fraction():
    """The stem of ImageNet: 1.8 billion multiplications for an image of 224 pixels."""
    with torch.device("meta"):
        encoder = build_encoder("resnet18-7x7", (3, 224, 224), 1.0)
        levels = encoder.stages(torch.zeros(1, 3, 224, 224))
    assert [level.shape[-1] for level in levels] == [56, 56, 28, 14, 7]
    small = build_encoder("resnet18-7x7", (3, 224, 224), 0.125)
    full = operations(encoder.to_empty(device="cpu"), (3, 224, 224))
    assert full == pytest.approx(3.6e9, rel=0.02)
    assert small(torch.zeros(1, 3, 70, 70)).shape == (1, 64)


def test_pooling_the_stem_before_its_relu_changes_nothing():
    encoder = build_encoder("resnet18-7x7", (1, 70, 70), 0.1)
    x = torch.randn(2, 1, 70, 70)
    stem = F.relu(encoder.norm(encoder.conv(x)))
    assert torch.equal(F.relu(encoder.stages(x)[0]), F.max_pool2d(stem, 3, 2, 1))


def test_your_own_model_is_found_by_import_path(tmp_path, monkeypatch):
    (tmp_path / "own_encoder_for_test.py").write_text(
        "from torch import nn\n\n\ndef make(shape, width):\n"
        "    pixels = shape[0] * shape[1] * shape[2]\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, int(10 * width)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    encoder = build_encoder("own_encoder_for_test:make", (1, 4, 4), 2.0)
    assert feature_dim(encoder, (1, 4, 4)) == 20
    with pytest.raises(CafedclError, match="has no stages"):
        Network(encoder, nn.Identity()).levels(torch.zeros(1, 1, 4, 4))


def test_an_unknown_model_suggests_the_nearest():
    with pytest.raises(CafedclError, match=r"model 'resnet': .*did you mean 'resnet8'\?"):
        build_encoder("resnet", (1, 8, 8), 1.0)


def test_an_unknown_model_far_from_all_lists_them():
    with pytest.raises(CafedclError, match=", ".join(sorted(MODELS))):
        build_encoder("zzzzzzzzzz", (1, 8, 8), 1.0)


@pytest.mark.parametrize(
    "path", ["no_such_module_here:make", "torch.nn:NoSuchThing", ":make", "torch:", ".torch:nn"]
)
def test_an_import_path_that_leads_nowhere_is_named(path):
    with pytest.raises(CafedclError, match="cannot be imported"):
        build_encoder(path, (1, 8, 8), 1.0)


def test_a_factory_must_return_a_module():
    with pytest.raises(
        CafedclError, match=r"'builtins:zip': it must return a torch\.nn\.Module, not zip"
    ):
        build_encoder("builtins:zip", ((), 8, 8), [1.0])


def test_a_model_must_give_one_row_of_features_per_image():
    with pytest.raises(CafedclError, match=r"\(batch, features\).*\(2, 1, 8, 8\)"):
        feature_dim(build_encoder("torch.nn:Identity", (1, 8, 8), 1.0), (1, 8, 8))


class Pair(nn.Module):
    """An encoder that returns more than its features."""

    def forward(self, x):
        return x.flatten(1), x


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(7, 8)),
            r"^it fails on images of \(1, 8, 8\): Runtime",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 8)).half(), "^it fails on .* dtype"),
        (nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(0)), r"it returned \(2, 0\)"),
        (Pair(), r"^it must return a tensor \(batch, features\), and not tuple$"),
    ],
)
def test_a_model_that_fails_on_images_is_one_line(encoder, words):
    with pytest.raises(CafedclError, match=words):
        feature_dim(encoder, (1, 8, 8))


@pytest.mark.parametrize("factory", ["too_wide", "takes_one", "Pair"])
def test_a_model_of_ones_own_that_fails_in_pytorch_is_named_with_its_file(
    factory, tmp_path, monkeypatch
):
    (tmp_path / "own_models_that_fail.py").write_text(
        "from torch import nn\n\ndef too_wide(shape, width):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(7, 8))\n\n"
        "def takes_one(shape):\n    return nn.Flatten()\n\n"
        "class Pair(nn.Flatten):\n    def __init__(self, shape, width):\n"
        "        super().__init__()\n\n    def forward(self, x):\n        return x, x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_models_that_fail:{factory}"
    with pytest.raises(CafedclError, match=r" \(own_models_that_fail\.py, line \d+\)$"):
        feature_dim(
            build_encoder(name, (1, 8, 8), 1.0), (1, 8, 8), place_of_model(ModelOptions(name=name))
        )


def exits(shape, width):
    raise SystemExit(3)


def test_a_factory_that_ends_the_program_is_one_line(monkeypatch):
    monkeypatch.setitem(MODELS, "exits", exits)
    with pytest.raises(CafedclError, match=r"'exits': building it .* failed: SystemExit: 3 \("):
        build_encoder("exits", (1, 8, 8), 1.0)


def test_images_too_small_for_a_model_are_refused_with_their_size():
    with pytest.raises(
        CafedclError, match="'cnn4': images of 3×28 are too small; the minimum is 16×16"
    ):
        build_encoder("cnn4", (1, 3, 28), 1.0)


def test_a_network_is_the_head_on_the_encoder():
    encoder = build_encoder("mlp", (1, 4, 4), 0.1)
    head = nn.ModuleDict({"classify": nn.Linear(6, 3)})
    network = Network(encoder, head)
    assert network.part("classify") is head["classify"]
    x = torch.randn(2, 1, 4, 4)
    assert torch.equal(Network(encoder, head["classify"])(x), head["classify"](encoder(x)))
    assert torch.equal(network.levels(x)[0][-1], before_relu(encoder, x))
