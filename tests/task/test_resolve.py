import pytest

from cafedcl.config.privacy_options import PrivacyOptions
from cafedcl.core.errors import CafedclError
from cafedcl.task.resolve import gather, imported_names, resolve


@pytest.mark.parametrize(
    "tables",
    [
        {"method": {"name": "evil:Method"}},
        {"method": {"name": "package.evil:Method"}},
        {"method": {"name": "fedavg+evil:Augmenter"}},
        {"method": {"name": "evil:Method+mixup"}},
        {"augment": {"name": "evil:Augmenter"}},
        {"model": {"name": "evil:make"}},
        {"data": {"name": "evil:load"}},
        {"data": {"name": "sites", "test": "evil:load"}},
    ],
)
def test_a_name_that_imports_code_is_found(tables) -> None:
    assert any("evil" in name for name in imported_names(tables))


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"method": {"name": "cafedcl:best"}, "model": {"name": "cnn4"}, "data": {"name": "sites"}},
        {"method": {"name": "cafedcl:literal+gan"}, "augment": {"name": "gan"}},
        {"data": {"name": "hf:mnist"}},
    ],
)
def test_names_of_this_package_import_nothing_else(tables) -> None:
    assert imported_names(tables) == []
    assert imported_names(resolve(tables).to_plain() if "data" not in tables else tables) == []


def test_the_config_of_a_run_folder_can_be_run_again(tmp_path) -> None:
    config = resolve({"method": {"name": "fedprox", "mu": 0.5}})
    file = tmp_path / "config.toml"
    file.write_text("format = 2\n\n" + config.to_toml())
    assert gather(file) == config


@pytest.mark.parametrize("name", ["noise", "clip", "budget"])
def test_options_of_privacy_without_a_kind_are_refused_even_if_they_are_the_defaults(
    name: str,
) -> None:
    usual = getattr(PrivacyOptions(), name)
    with pytest.raises(CafedclError, match=rf"privacy\.{name}: .* privacy\.kind is not"):
        resolve({"privacy": {name: usual}})
    assert resolve({"privacy": {"kind": "none", name: usual}}).privacy == PrivacyOptions()


@pytest.mark.parametrize(
    ("text", "words", "error"),
    [
        ("[train]\nepocs = 3\n", [], "{file}: train.epocs: there is no such option"),
        ("[trian]\nlr = 0.1\n", [], "{file}: [trian]: there is no such section"),
        ("[train]\nlr = 0.1\n", ["train.epocs=3"], "train.epocs: there is no such option"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(text, words, error, tmp_path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(CafedclError) as caught:
        gather(file, settings=words)
    assert str(caught.value).startswith(error.format(file=file))
