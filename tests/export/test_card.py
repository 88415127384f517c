from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import cafedcl
from cafedcl.core.errors import CafedclError
from cafedcl.export.card import model_card
from cafedcl.federation.result import Run

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
    assert "They are calibrated by a temperature" in card


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
