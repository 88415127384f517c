import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from cafedcl.cli import report as commands
from cafedcl.core.errors import CafedclError
from cafedcl.report.paper import FIRST, SECOND, paper_position
from cafedcl.report.printed import as_csv, as_latex, as_markdown, escape_latex
from cafedcl.report.printed_rich import as_rich
from cafedcl.report.run_summary import RunSummary
from cafedcl.report.runs import read_runs
from cafedcl.report.setting import Setting
from cafedcl.report.table import TABLE_MEASURES, ScoreTable, ranks, score_table

Maker = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(make_run: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods × three seeds in the paper's first setting, and one run in another."""
    home = tmp_path_factory.mktemp("runs")
    levels = {
        "fedavg": (0.80, 0.85, 0.90),
        "moon": (0.88, 0.88, 0.89),
        "cafedcl": (0.81, 0.87, 0.93),
    }
    for method, values in levels.items():
        for seed, value in enumerate(values):
            made = {"data__name": "cifar10", "federation__clients": 20}
            make_run(home / f"{method}{seed}", method, seed, value, std=0.1 - 0.1 * value, **made)
    make_run(home / "iid", "fed_odd&co", split__kind="iid", data__name="my_data")
    return home


@pytest.fixture(scope="module")
def made(folder: Path) -> ScoreTable:
    return score_table(read_runs([folder]))


def test_mean_and_sample_std_over_seeds(made: ScoreTable) -> None:
    cells = made.columns[0].cells
    assert cells["fedavg"]["accuracy"].text == "85.00 ± 5.00"
    assert cells["moon"]["accuracy"].text == "88.33 ± 0.58"
    assert cells["cafedcl"]["accuracy"].text == "87.00 ± 6.00"
    assert cells["cafedcl"]["std"].text == "1.30 ± 0.60"
    assert cells["cafedcl"]["worst"].text == "70.00 ± 0.00"


def test_best_and_second(made: ScoreTable) -> None:
    cells = made.columns[0].cells
    assert {name: row["accuracy"].rank for name, row in cells.items()} == {
        "fedavg": 3,
        "moon": 1,
        "cafedcl": 2,
    }
    assert {name: row["std"].rank for name, row in cells.items()} == {
        "fedavg": 3,
        "moon": 1,
        "cafedcl": 2,
    }
    assert made.columns[1].cells["fed_odd&co"]["accuracy"].rank == 0, "nobody to compare with"


def test_all_data_in_one_place_is_no_rival(make_run: Maker, tmp_path: Path) -> None:
    for seed in (0, 1):
        for method, level in (("central", 0.95), ("fedavg", 0.8), ("moon", 0.7)):
            make_run(tmp_path / f"{method}{seed}", method, seed, level)
    column = score_table(read_runs([tmp_path])).columns[0]
    ranks_of = {name: row["accuracy"].rank for name, row in column.cells.items()}
    assert ranks_of == {"central": 0, "fedavg": 1, "moon": 2}
    assert column.comparison is not None
    assert (column.comparison.best, column.comparison.runner_up) == ("fedavg", "moon")


def test_what_is_printed_alike_ranks_alike() -> None:
    assert ranks([90.001, 90.002, None, 80.0, 70.0], higher=True) == [1, 1, 0, 2, 3]
    assert ranks([3.0, 1.0, 2.0], higher=False) == [3, 1, 2]
    assert ranks([1.0, None], higher=True) == [0, 0]


def test_significance_of_the_best_against_the_runner_up(make_run: Maker, tmp_path: Path) -> None:
    for seed, gain in enumerate((0.01, 0.02, 0.03)):
        make_run(tmp_path / f"a{seed}", "fedavg", seed, 0.8)
        make_run(tmp_path / f"b{seed}", "cafedcl", seed, 0.8 + gain)
        make_run(tmp_path / f"c{seed}", "cafedcl:no-geo", seed, 0.8 + gain - 0.001)
    test = score_table(read_runs([tmp_path])).columns[0].comparison
    assert test is not None
    assert (test.best, test.runner_up, test.seeds) == ("cafedcl", "fedavg", 3)
    assert test.difference == pytest.approx(2.0)
    assert test.t == pytest.approx(1 - 12**0.5 / 14**0.5), (
        "Student's t with two degrees of freedom, in closed form"
    )
    assert test.wilcoxon == pytest.approx(0.25), "one of the 2³ signs, on both sides"
    assert (
        "paired t-test p = 0.074, Wilcoxon signed-rank test p = 0.25 (two-sided, 3 shared seeds)"
        in test.text
    )


def test_significance_needs_two_shared_seeds(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedavg", 0, 0.8)
    make_run(tmp_path / "b", "cafedcl", 1, 0.9)
    test = score_table(read_runs([tmp_path])).columns[0].comparison
    assert test is not None
    assert (test.t, test.wilcoxon) == (None, None)
    assert test.text == "cafedcl against fedavg: +10.00 points; significance needs two shared seeds"


def test_ranks_are_of_shared_seeds(make_run: Maker, tmp_path: Path) -> None:
    """Moon's only seed is an easy one: on it, FedAvg is better, and its mean is lower."""
    for seed, value in enumerate((0.9, 0.5)):
        make_run(tmp_path / f"fedavg{seed}", "fedavg", seed, value)
    make_run(tmp_path / "moon", "moon", 0, 0.8)
    column = score_table(read_runs([tmp_path])).columns[0]
    assert column.cells["fedavg"]["accuracy"].text.startswith("70.00")
    assert column.cells["moon"]["accuracy"].text == "80.00"
    ranked = {label: cells["accuracy"].rank for label, cells in column.cells.items()}
    assert ranked == {"fedavg": 1, "moon": 2}
    assert column.comparison is not None
    assert (column.comparison.best, column.comparison.runner_up) == ("fedavg", "moon")
    assert column.comparison.difference == pytest.approx(10)


def test_best_round(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", accuracy=0.9)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(
        "\n".join([lines[0], lines[1].replace("0.6", "0.95", 1), lines[2]]) + "\n"
    )
    summary = read_runs([tmp_path])
    assert (
        score_table(summary, "server", "last").columns[0].cells["fedavg"]["accuracy"].text
        == "90.00"
    )
    assert (
        score_table(summary, "server", "best").columns[0].cells["fedavg"]["accuracy"].text
        == "95.00"
    )


def test_the_best_round_is_one_with_the_scores_of_most_clients(
    make_run: Maker, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "a", accuracy=0.9)
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    lines[1]["server"] |= {"accuracy": 0.95, "client_missing": 1}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = score_table(read_runs([tmp_path]), "server", "best")
    assert table.columns[0].cells["fedavg"]["accuracy"].text == "90.00"


def test_the_protocol_is_one_that_all_methods_have(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedavg")
    make_run(tmp_path / "b", "fedproto", extras=())
    summary = read_runs([tmp_path])
    assert score_table(summary).protocol == "own"
    lacking = score_table(summary, "server")
    assert lacking.columns[0].cells["fedproto"]["accuracy"].text == "–"
    assert any("fedproto; try --protocol own" in note for note in lacking.notes)


def test_own_models_that_are_told_their_label_distribution_are_a_protocol_of_their_own() -> None:
    scores = {"client_mean": 0.5, "client_balanced": 0.4, "prior_mean": 0.7, "prior_std": 0.1}
    scores |= {"prior_worst": 0.2, "prior_balanced": 0.6, "prior_worst_class": 0.3}
    line = {"round": 0, "server": None, "own": {**scores, "balanced": 0.9, "worst_class": 0.1}}
    run = RunSummary(Path("a"), "finished", lines=[line])
    found = {name: run.value(line, "own-prior", name) for name in TABLE_MEASURES}
    assert found == {
        "accuracy": 0.7,
        "balanced": 0.6,
        "worst_class": 0.3,
        "std": 0.1,
        "worst": 0.2,
    }
    assert run.value(line, "own", "accuracy") == 0.5
    assert run.value(line, "own", "balanced") == 0.4
    assert run.value(line, "own", "worst_class") == 0.1
    assert run.value(line, "own-prior", "few") is None
    assert run.scored("own-prior") == [line]


def test_a_method_without_own_models_is_sent_to_the_other_protocol(
    make_run: Maker, tmp_path: Path
) -> None:
    make_run(tmp_path / "a", "fedavg")
    made = score_table(read_runs([tmp_path]), "own-prior")
    assert any("not scored this way: fedavg; try --protocol server." in n for n in made.notes)


def test_markdown(made: ScoreTable) -> None:
    text = as_markdown(made)
    moon = next(line for line in text.splitlines() if line.startswith("| moon"))
    cafedcl = next(line for line in text.splitlines() if line.startswith("| cafedcl"))
    assert "**88.33 ± 0.58**" in moon
    assert "<u>87.00 ± 6.00</u>" in cafedcl
    assert "| fed\\_odd&co |" in text
    main, *others = text.split("\n\n")
    assert len({line.count("|") for line in main.splitlines()}) == 1
    assert sum(part.startswith("Recall per class") for part in others) == 2


def test_latex_has_the_layout_of_the_paper(made: ScoreTable) -> None:
    text = as_latex(made, paper=True)
    assert r"\multicolumn{7}{c}{Practical heterogeneous ($\alpha$ = 0.1, K = 20)}" in text
    assert r"\multicolumn{7}{c}{CIFAR-10}" in text
    balanced = r"\textbf{88.33 $\pm$ 0.58} & \textbf{88.33 $\pm$ 0.58}"
    spread = r"\textbf{1.17 $\pm$ 0.06} & \textbf{70.00 $\pm$ 0.00}"
    assert rf"moon & \textbf{{88.33 $\pm$ 0.58}} & {balanced} & {spread} & 82.06 & 11.19 \\" in text
    assert r"cafedcl & \underline{87.00 $\pm$ 6.00}" in text
    assert r"fed\_odd\&co & 90.00" in text
    assert r"my\_data" in text
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") == 4
    captions = [line for line in text.splitlines() if line.startswith(r"\caption{")]
    assert len(set(captions)) == 4
    assert captions[0].startswith(r"\caption{cifar10, ")
    assert r"{my\_data" in captions[1]
    rows = [line for line in text.splitlines() if line.startswith("moon")]
    assert [line.count("&") for line in rows] == [7, 4], "the scores, and the recall of 4 classes"


def test_a_class_name_with_a_line_break_is_one_cell(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", names=["one\ntwo", "b\n\nc", "d", "e"])
    made = score_table(read_runs([tmp_path]))
    assert "| method | one two | b  c | d | e |" in as_markdown(made)
    assert r"method & one two & b  c & d & e \\" in as_latex(made)


def test_latex_escapes() -> None:
    assert escape_latex(r"a_b 5% #1 {x} \y ~^ & $") == (
        r"a\_b 5\% \#1 \{x\} \textbackslash{}y \textasciitilde{}\textasciicircum{} \& \$"
    )


def test_csv_has_all_digits(made: ScoreTable) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(made, paper=True))))
    (row,) = [row for row in rows if row["method"] == "fedavg"]
    assert (row["data"], row["split"], row["clients"], row["seeds"]) == (
        "cifar10",
        "dirichlet:0.1",
        "20",
        "3",
    )
    assert float(row["accuracy_mean"]) == pytest.approx(85)
    assert float(row["accuracy_std"]) == pytest.approx(5)
    assert (row["paper_accuracy"], row["paper_std"]) == ("60.32", "12.03")
    assert [row["accuracy_rank"] for row in rows if row["data"] == "cifar10"] == ["3", "1", "2"]


@pytest.mark.parametrize("width", [60, 200])
def test_rich_fits_the_terminal(made: ScoreTable, width: int) -> None:
    screen = Console(width=width, record=True, file=io.StringIO())
    screen.print(as_rich(made, True, width))
    text = screen.export_text()
    assert "88.33 ±" in text
    assert max(map(len, text.splitlines())) <= width


def test_what_is_not_finished_cannot_be_best(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedavg", accuracy=0.8)
    make_run(tmp_path / "b", "fedprox", accuracy=0.7)
    make_run(tmp_path / "c", "moon", accuracy=0.9, done=1)
    (column,) = score_table(read_runs([tmp_path])).columns
    assert {name: row["accuracy"].rank for name, row in column.cells.items()} == {
        "fedavg": 1,
        "fedprox": 2,
        "moon": 0,
    }
    assert column.comparison is not None
    assert (column.comparison.best, column.comparison.runner_up) == ("fedavg", "fedprox")


def test_damaged_runs_are_notes_of_the_table(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "good")
    (make_run(tmp_path / "bad") / "config.toml").write_text("[[[")
    make_run(tmp_path / "half", "moon", 3, done=1)
    made = score_table(read_runs([tmp_path]))
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(as_csv(made)))}
    assert rows["moon"]["warning"] == "not finished, scores so far"
    assert rows["fedavg"]["warning"] == ""
    notes = made.notes
    assert any(note.startswith("damaged: ") and "not valid TOML" in note for note in notes)
    assert any(note.startswith("unfinished: ") for note in notes)
    assert any("not finished, scores so far: moon" in note for note in notes)


PAPER = {
    ("cifar10", "dirichlet", "0.1", 1.0, 20): (1, "CIFAR-10", 91.15, 4.87),
    ("emnist-balanced", "pathological", "2", 10.0, 20): (1, "EMNIST-BALANCED", 97.00, 2.25),
    ("cifar100", "pathological", "20", 10.0, 20): (1, "CIFAR-100", 54.57, 2.82),
    ("cifar10", "dirichlet", "0.05", 1.0, 20): (2, "CIFAR-10, α = 0.05", 70.22, 5.17),
    ("cifar10", "pathological", "2", 100.0, 20): (2, "CIFAR-10, IR = 100", 46.53, 6.47),
    ("cifar100", "pathological", "50", 10.0, 20): (2, "CIFAR-100, C/Client = 50", 39.22, 2.48),
    ("cifar10", "dirichlet", "0.1", 1.0, 100): (2, "CIFAR-10, 100 clients", 83.60, 6.39),
}


@pytest.mark.parametrize("setting", PAPER)
def test_every_setting_of_the_paper_finds_its_place(
    setting: tuple[str, str, str, float, int],
) -> None:
    table, title, accuracy, std = PAPER[setting]
    found = paper_position(Setting(*setting))
    assert (found.table, found.title) == (table, title)
    assert found.figures["cafedcl"] == (accuracy, std)


def test_other_settings_have_no_figures() -> None:
    for setting in (
        Setting("digits", "dirichlet", "0.1", 1.0, 20),
        Setting("cifar10", "dirichlet", "0.05", 1.0, 50),
        Setting("cifar10", "iid", "", 1.0, 20),
        Setting("cifar10", "pathological", "2", 10.0, 50),
    ):
        assert not paper_position(setting).figures


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "gtsrb"])
def test_other_numbers_of_classes_per_client_are_other_settings(data: str) -> None:
    found = [paper_position(Setting(data, "pathological", n, 10.0, 20)) for n in ("3", "8")]
    for position, classes in zip(found, "38", strict=True):
        # Nothing of the split is left out, not even the long tail that the paper takes as given.
        words = f"{position.heading}; {position.title}"
        assert f"pathological:{classes}," in words or f"C/Client = {classes}" in words
        assert "ir=10" in words or "IR = 10" in words
    assert not any(position.figures for position in found)


def test_the_figures_of_the_paper_are_whole() -> None:
    """CAFedCL is in bold everywhere in the paper: highest accuracy, lowest std."""
    assert len(FIRST) == 6
    assert len(SECOND) == 8
    for figures in (*FIRST.values(), *SECOND.values()):
        assert len(figures) == 10
        assert max(figures, key=lambda name: figures[name][0]) == "cafedcl"
        assert min(figures, key=lambda name: figures[name][1]) == "cafedcl"
    assert FIRST["dirichlet", "cifar100"]["fedtgp"] == (51.30, 8.59)
    assert SECOND["clients", "50"]["mp-fedcl"] == (82.25, 10.20)


@pytest.mark.parametrize("form", ["rich", "markdown", "latex", "csv"])
def test_the_command_prints(folder: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    commands.table([folder], form=form, paper=True)
    assert "88.3" in capsys.readouterr().out


def test_the_command_refuses_what_there_is_not(folder: Path) -> None:
    with pytest.raises(CafedclError, match=r"--format latx.*did you mean 'latex'\?"):
        commands.table([folder], form="latx")
    with pytest.raises(CafedclError, match="--protocol"):
        commands.table([folder], protocol="both")
    with pytest.raises(CafedclError, match="--round"):
        commands.table([folder], which="first")


SKEWED = [670, 110, 100, 51]


@pytest.fixture(scope="module")
def skewed(make_run: Maker, tmp_path_factory: pytest.TempPathFactory) -> ScoreTable:
    """FedAvg always says the most frequent class; CAFedCL recognises half of every class."""
    home = tmp_path_factory.mktemp("skewed")
    names = ["nevus", "melanoma", "keratosis", "vascular"]
    made = {"tested": SKEWED, "names": names}
    for method, accuracy, only in (("fedavg", 0.72, 0), ("cafedcl", 0.5, None)):
        run = make_run(home / method, method, 0, accuracy, only=only, **made)
        metrics = run / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        for line in lines:
            # Runs of earlier versions have no recall of the worst class.
            line["server"]["balanced"] = 0.25 if only == 0 else line["server"]["balanced"]
        metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return score_table(read_runs([home]), "server")


def test_where_test_labels_are_skewed_the_ranking_is_by_balanced_accuracy(
    skewed: ScoreTable,
) -> None:
    (column,) = skewed.columns
    assert column.ranked_by == "balanced"
    assert column.comparison is not None
    assert column.comparison.best == "cafedcl"
    assert "+25.00 points of balanced accuracy" in column.comparison.text
    assert any("ranked by balanced accuracy" in note for note in skewed.notes)
    assert any("13 times as many test images" in note for note in skewed.notes)


def test_a_model_that_predicts_one_class_is_warned_of(skewed: ScoreTable) -> None:
    (warning,) = [note for note in skewed.notes if note.startswith("warning")]
    assert "fedavg" in warning
    assert "almost only the class 'nevus' (100.0 % of the test images)" in warning


def test_equal_test_labels_rank_by_accuracy(made: ScoreTable) -> None:
    assert [column.ranked_by for column in made.columns] == ["accuracy", "accuracy"]
    assert not any("balanced accuracy" in note for note in made.notes)


def test_recall_per_class_and_the_worst_class_stand_in_every_format(skewed: ScoreTable) -> None:
    (row,) = [
        row for row in csv.DictReader(io.StringIO(as_csv(skewed))) if row["method"] == "fedavg"
    ]
    assert float(row["recall[nevus]"]) == 100
    assert float(row["recall[vascular]"]) == 0
    assert float(row["balanced_mean"]) == 25
    assert float(row["worst_class_mean"]) == 0, "from the tables, since the metrics lack it"
    assert row["worst_class_name"] != "nevus"
    assert row["ranked_by"] == "balanced"
    assert "almost only" in row["warning"]
    assert row["auroc_mean"] == "", "not stored by earlier versions"
    assert "| fedavg | 100.0 | 0.0 | 0.0 | 0.0 |" in as_markdown(skewed)
    assert r"fedavg & 100.0 & 0.0 & 0.0 & 0.0 \\" in as_latex(skewed)
    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(as_rich(skewed, False, 80))
    text = screen.export_text()
    for word in ("Bal. ↑", "Class ↑", "nevus", "melanoma", "25.00"):
        assert word in text


def test_of_many_classes_only_the_worst_are_named(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", classes=20)
    text = as_markdown(score_table(read_runs([tmp_path]), "server"))
    (line,) = [line for line in text.splitlines() if line.startswith("| fedavg | 0 90.0")]
    assert line.count("90.0") == 5


def test_further_scores_are_printed_when_asked_for(made: ScoreTable) -> None:
    assert "AUROC" not in as_markdown(made)
    assert "| method | Macro-F1 ↑ | AUROC ↑ |" in as_markdown(made, full=True)


def test_missing_tables_are_named_and_the_scores_stay(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", accuracy=0.9)
    (run / "evaluations" / "000002.safetensors").unlink()
    table = score_table(read_runs([tmp_path]), "server")
    cells = table.columns[0].cells["fedavg"]
    assert (cells["accuracy"].text, cells["worst_class"].text) == ("90.00", "–")
    (problem,) = table.problems
    assert problem.startswith(f"{run}/evaluations/000002.safetensors: missing")


def test_attacks_and_defences_that_no_label_names_are_told(make_run: Maker, tmp_path: Path) -> None:
    lies = {"attack__kind": "sign-flip", "attack__clients": 2, "defence__kind": "clip"}
    for method in ("fedavg", "moon"):
        make_run(tmp_path / "alike" / method, method, 0, 0.8, **lies)
    alike = score_table(read_runs([tmp_path / "alike"]))
    assert "all runs have attack sign-flip:2, defence clip" in " ".join(alike.notes)
    for row in csv.DictReader(io.StringIO(as_csv(alike))):
        assert row["attack_defence_privacy"].startswith("attack sign-flip:2, defence clip")
    make_run(tmp_path / "one" / "moon", "moon", 0, 0.8, **lies)
    make_run(tmp_path / "one" / "fedavg", "fedavg", 0, 0.8)
    notes = " ".join(score_table(read_runs([tmp_path / "one"])).notes)
    assert "moon has attack sign-flip:2, defence clip" in notes
    assert "fedavg has" not in notes


def test_the_plain_name_is_that_of_the_run_without_attack_or_privacy(
    make_run: Maker, tmp_path: Path
) -> None:
    """Also if its folder comes last and there are more seeds of the other."""
    lies = {"attack__kind": "sign-flip", "attack__clients": 2}
    for seed in (0, 1):
        make_run(tmp_path / f"a{seed}", "fedavg", seed, 0.4, **lies)
    make_run(tmp_path / "z", "fedavg", 0, 0.8)
    labels = [row.label for row in score_table(read_runs([tmp_path])).rows]
    assert labels == ["fedavg", "fedavg (attack=sign-flip:2)"]
