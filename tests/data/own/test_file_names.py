import pytest

from cafedcl.data.own.file_names import patients_remark


@pytest.mark.parametrize("form", ["P{:03d}_{}.png", "cat/case-{} img{}.jpg", "{}.{}.dcm"])
def test_several_images_of_a_patient_are_suspected(form):
    names = [form.format(patient + 100, view) for patient in range(10) for view in range(3)]
    (remark,) = patients_remark("photos", names)
    assert f"such as {names[0]} and {names[1]}" in remark


@pytest.mark.parametrize(
    "names",
    [
        [f"{i}.png" for i in range(100)],
        [f"img_{i}.png" for i in range(100)],
        [f"class{c}_{i}.png" for c in range(10) for i in range(100)],
        [f"ISIC_{i:07d}.jpg" for i in range(100)],
        [f"P{i}_1.png" for i in range(100)],
        ["P1_1.png", "P1_2.png"],
        [],
    ],
    ids=["numbers", "one prefix", "classes", "long numbers", "one each", "too few", "none"],
)
def test_other_names_prove_nothing(names):
    assert patients_remark("photos", names) == []


def test_the_reader_says_it_unless_there_are_groups(tmp_path, load, paint, capsys):
    rows = ["path,label,who"]
    for i in range(24):
        name = f"P{i // 3}_{i % 3}.png"
        paint(tmp_path / name, i)
        rows.append(f"{name},{'ab'[i // 3 % 2]},{i // 3}")
    path = tmp_path / "list.csv"
    path.write_text("\n".join(rows))
    load(path)
    assert "several images of one patient, such as P0_0.png and P0_1.png" in (
        capsys.readouterr().err
    )
    load(path, group="who")
    load(path, group="none")
    assert "several images" not in capsys.readouterr().err
