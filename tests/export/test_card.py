from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import cafedcl
from cafedcl.core.errors import CafedclError
from cafedcl.data.grey_values import Window
from cafedcl.export.card import counted, model_card
from cafedcl.export.formats import about
from cafedcl.federation.result import Run
from cafedcl.report.class_scores import read_class_scores
from cafedcl.task.resolve import resolve

OLD = Path(__file__).parents[1] / "federation" / "old_runs" / "format_1" / "cafedcl"


@pytest.fixture(scope="module")
def run() -> Run:
    return cafedcl.load(OLD)


def test_a_card_tells_data_split_scores_per_class_privacy_and_licence(run: Run) -> None:
    card = model_card(run, run.model, "digits.onnx", None, "CC BY 4.0")
    assert card.startswith("# digits.onnx\n")
    for words in (
        "| data | digits |",
        "| split |",
        "| rounds | 2 of 2 |",
        "| balanced accuracy (mean recall of the classes) | 59.6 |",
        "| class | test images | recall, % |",
        "| 0 | 36 | 97.2 |",
        "No differential privacy was used",
        "CC BY 4.0",
        "They are not calibrated",
    ):
        assert words in card


def test_recalls_are_those_of_the_round_whose_model_it_is(run: Run) -> None:
    earlier = replace(run, records=run.records[:1])
    card = model_card(earlier, run.model, "m", None, "")
    first, last = (read_class_scores(OLD, line).recall["server"] for line in run.records)
    assert f"| 0 | 36 | {100 * first[0]:.1f} |" in card
    assert round(100 * first[0], 1) != round(100 * last[0], 1), "else this would show nothing"


def test_a_card_of_a_clients_model_has_the_scores_of_own_models(run: Run) -> None:
    card = model_card(run, run.model, "m", 0, "")
    mean = run.records[-1]["own"]["client_mean"]
    row = "| accuracy, weighted by the class frequencies of each client |"
    assert f"{row} {100 * mean:.1f} |" in card
    assert "balanced accuracy (mean recall of the classes) |" not in card


def test_grey_values_of_more_than_8_bits_are_said_with_their_window(run: Run) -> None:
    deep = replace(run, window=Window((300.0, 2340.0)))
    card = model_card(deep, run.model, "m", None, "")
    assert "300 and below is 0, 2340 and above is 255" in card
    assert "A DICOM file's own window comes first." in card
    assert about(deep, run.model)["window"] == [300.0, 2340.0]
    plain = replace(run, window=Window())
    assert "more than 8 bits" not in model_card(plain, run.model, "m", None, "")
    assert about(plain, run.model)["window"] == []


def test_a_card_says_that_clients_lied_and_what_was_done(run: Run) -> None:
    card = model_card(run, run.model, "m", None, "")
    assert "attack" not in card
    assert "defence" not in card
    trust = {"attack": {"kind": "scale", "clients": 2}, "defence": {"kind": "clip"}}
    config = resolve({"method": {"name": "cafedcl"}, **trust})
    attacked = replace(run.config, attack=config.attack, defence=config.defence)
    card = model_card(replace(run, config=attacked), run.model, "m", None, "")
    assert "| attack | scale:2: clients lied, as an experiment |" in card
    assert "| defence | clip |" in card


def test_a_card_without_a_licence_says_so(run: Run) -> None:
    assert "Not stated." in model_card(run, run.model, "digits.onnx", None, "")


def test_a_card_of_a_model_without_scores_does_not_say_that_it_was_tested(run: Run) -> None:
    nothing = {"accuracy": None, "balanced": float("nan"), "client_missing": 3}
    unscored = replace(run, records=[{**line, "server": nothing} for line in run.records])
    card = model_card(unscored, run.model, "m", None, "")
    assert "This model was not scored." in card
    assert "There are no results of this model" in card
    assert "was tested on" not in card


def test_names_cannot_break_out_of_a_card(run: Run) -> None:
    assert "\\<script>" in model_card(run, run.model, "<script>", None, "<b>")


def test_a_class_name_with_a_line_break_does_not_break_the_tables(
    tiny: Callable[..., cafedcl.Federation],
) -> None:
    from cafedcl.federation.runs import _result

    federation = tiny("fedavg", federation__rounds=1)
    federation.step()
    found = _result(federation, None)
    found = replace(found, names=("one\n\nof two\r| lines", *found.names[1:]))
    card = model_card(found, found.model, "m", None, "first line\nsecond line")
    assert "| images of one  of two \\| lines | " in card
    assert "first line\nsecond line" in card


def test_the_format_follows_from_the_files_name(run: Run, tmp_path: Path) -> None:
    card = cafedcl.export(run, tmp_path / "model.safetensors")
    assert card == tmp_path / "model.md"
    with pytest.raises(CafedclError, match="its name must end with"):
        cafedcl.export(run, tmp_path / "model.bin")


def test_a_card_of_a_run_without_a_folder_has_its_scores(
    tiny: Callable[..., cafedcl.Federation],
) -> None:
    from cafedcl.federation.runs import _result

    federation = tiny("fedavg", federation__rounds=1, evaluate__full=True)
    federation.step()
    found = _result(federation, None)
    card = model_card(found, found.model, "m", None, "")
    assert "| accuracy |" in card
    assert "and by how common the classes were there" in card
    assert "expected calibration error of the probabilities |" in card


def test_a_card_that_a_person_edited_is_kept(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    card = cafedcl.export(run, file)
    assert card == tmp_path / "model.md"
    written = card.read_text(encoding="utf-8")
    assert written.startswith(model_card(run, run.model, file.name, None, ""))
    assert cafedcl.export(run, file, licence="CC0") == card
    replaced = card.read_text(encoding="utf-8")
    assert "CC0" in replaced, "as it was written, so it is replaced"
    card.write_bytes(replaced.replace("\n", "\r\n").encode())
    assert cafedcl.export(run, file) == card, "only the ends of the lines were changed"
    card.write_text(written.replace("Not stated.", "For our hospital."), encoding="utf-8")
    newer = cafedcl.export(run, file, licence="CC0")
    assert newer == tmp_path / "model.new.md"
    assert "CC0" in newer.read_text(encoding="utf-8")
    assert "For our hospital." in card.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", ["", "# My notes\n", "\xff\n\n<!-- written by cafedcl, -->\n"])
def test_a_file_that_is_no_card_is_kept(run: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "model.md").write_text(content, encoding="latin-1")
    assert cafedcl.export(run, tmp_path / "model.safetensors").name == "model.new.md"
    assert (tmp_path / "model.md").read_text(encoding="latin-1") == content


@pytest.mark.parametrize(
    ("data", "release", "expected"),
    [
        ("digits", {"fewest": 3}, "without validation images"),
        (
            "sites",
            {},
            "without validation images; each site's rounded to multiples of 10; without classes of "
            "which a site has fewer than 5",
        ),
        (
            "sites",
            {"counts": "withheld", "fewest": 1},
            "without validation images; sites withheld the numbers, so these are not counts",
        ),
        ("sites", {"counts": "exact", "fewest": 1}, "without validation images"),
    ],
)
def test_how_exact_the_numbers_of_images_are(data: str, release: dict, expected: str) -> None:
    config = resolve({"data": {"name": data}, "engine": {"name": "flower"}, "release": release})
    assert counted(config) == expected
