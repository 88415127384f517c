import tomllib
from pathlib import Path

import cafedcl
from cafedcl import extend

ROOT = Path(__file__).parents[1]

NAMES = [
    "Aggregator",
    "Augmenter",
    "Average",
    "Averages",
    "Batch",
    "Claims",
    "ClassMeans",
    "Client",
    "ClientImages",
    "Dataset",
    "Encoder",
    "Enrolment",
    "Entries",
    "FedAvg",
    "Field",
    "Method",
    "Network",
    "NoOptions",
    "Shape",
    "SyntheticImages",
    "TailOptions",
    "Tensors",
    "Transform",
    "Up",
    "Visit",
    "align_loss",
    "class_means",
    "class_scatter",
    "class_sums",
    "cosine_logits",
    "cross_entropy",
    "distances",
    "draw_batches",
    "geometry_loss",
    "i2p_loss",
    "k_means",
    "log_prior",
    "mean_prototypes",
    "merge_prototypes",
    "minimise",
    "no_prototypes",
    "normalise",
    "option",
    "orthonormal",
    "prefixed",
    "running_means",
    "simplex",
    "start_sums",
    "under",
    "uniform",
    "unit",
    "weighted_average",
    "without",
]


def test_extend_exports_exactly_these_names() -> None:
    assert extend.__all__ == NAMES
    public = {name for name in vars(extend) if not name.startswith("_")}
    assert public == set(NAMES)


def test_every_name_is_documented() -> None:
    for name in NAMES:
        assert f"`{name}`" in (extend.__doc__ or ""), name
        value = getattr(extend, name)
        if name not in ("Shape", "Tensors"):
            assert value.__doc__, name


def test_the_version_is_the_same_everywhere() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert pyproject["project"]["version"] == cafedcl.__version__
    assert f"\nversion: {cafedcl.__version__}\n" in citation
    assert f"\n## {cafedcl.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
