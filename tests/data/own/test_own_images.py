import numpy as np
import pytest
import torch
from PIL import Image

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data import load_dataset

CLASSES = {"cat": 10, "dog": 60, "Owl": 110}


@pytest.fixture
def folder(tmp_path, paint):
    """Ten grey images in each of three classes; the pixel says the class and the number."""
    for name, value in CLASSES.items():
        for i in range(10):
            paint(tmp_path / "own" / name / f"{i}.png", value + i)
    return tmp_path / "own"


@pytest.fixture
def clinics(tmp_path, paint):
    """Three clients with images in two classes."""
    for k, client in enumerate(("Clinic A", "Clinic B", "c")):
        for c, name in enumerate(("ill", "well")):
            for i in range(3 + 2 * k):
                paint(tmp_path / "own" / client / name / f"{i}.png", 100 * k + 50 * c + i)
    return tmp_path / "own"


def pixels(x):
    return sorted(x[:, 0, 0, 0].tolist())


def test_one_folder_per_class_with_a_fifth_held_out_of_each(folder, load, capsys):
    data = load(folder)
    again = load(folder)
    assert data.names == ("Owl", "cat", "dog")
    assert data.shape == (1, 8, 8)
    assert pixels(torch.cat([data.train_x, data.test_x])) == sorted(
        v + i for v in CLASSES.values() for i in range(10)
    )
    assert torch.bincount(data.test_y).tolist() == [2, 2, 2]
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert [data.names[c] for c in y] == [
            name for v in x[:, 0, 0, 0].tolist() for name in CLASSES if 0 <= v - CLASSES[name] < 10
        ]
    assert torch.equal(again.test_x, data.test_x)
    assert len(data.owners) == 0
    assert data.owner_names == ()
    assert capsys.readouterr() == ("", "")


def test_train_and_test_folders_are_kept_apart(folder, load, paint, capsys):
    folder.rename(folder.with_name("x"))
    folder.mkdir()
    folder.with_name("x").rename(folder / "train")
    paint(folder / "test" / "cat" / "t.png", 255)
    data = load(folder)
    assert (len(data.train_y), len(data.test_y)) == (30, 1)
    assert data.names[data.test_y[0]] == "cat"
    paint(folder / "val" / "dog" / "v.png", 1)
    assert (len(load(folder).train_y), len(load(folder).test_y)) == (30, 1)
    assert (
        "1 validation images are left out; each client holds out its own" in capsys.readouterr().err
    )
    (folder / "test" / "cat" / "t.png").unlink()
    (folder / "test" / "cat").rmdir()
    (folder / "test").rmdir()
    assert load(folder).test_x.flatten()[0] == 1
    (folder / "stranger").mkdir()
    with pytest.raises(CafedclError, match="the folder 'stranger' is beside the training folder"):
        load(folder)


def test_a_class_may_be_called_train(tmp_path, load, paint):
    for name in ("plane", "train"):
        for i in range(4):
            paint(tmp_path / "own" / name / f"{i}.png", i)
    assert load(tmp_path / "own").names == ("plane", "train")


def test_one_folder_per_client_gives_natural_clients(clinics, load):
    data = load(clinics)
    assert data.owner_names == ("Clinic A", "Clinic B", "c")
    assert data.names == ("ill", "well")
    assert (data.train_x[:, 0, 0, 0] // 100 == data.owners).all()
    assert (data.train_x[:, 0, 0, 0] % 100 // 50 == data.train_y).all()
    total = np.array([6, 10, 14])
    kept = torch.bincount(data.owners).numpy()
    assert np.abs((total - kept) - 0.2 * total).max() <= 1
    assert len(data.test_y) == 6
    assert data.owners.dtype == torch.int64


def test_clients_below_train_and_all_tested_together(clinics, load, paint):
    clinics.rename(clinics.with_name("x"))
    clinics.mkdir()
    clinics.with_name("x").rename(clinics / "train")
    paint(clinics / "test" / "ill" / "t.png", 255)
    data = load(clinics)
    assert torch.bincount(data.owners).tolist() == [6, 10, 14]
    assert len(data.test_y) == 1


def test_every_client_keeps_an_image(tmp_path, load, paint):
    for k in range(12):
        paint(tmp_path / "own" / str(k) / "ab"[k % 2] / "0.png", k)
    for i in range(20):
        paint(tmp_path / "own" / "12" / "a" / f"{i}.png", 50 + i)
    data = load(tmp_path / "own")
    assert data.owner_names == tuple(map(str, range(13)))
    assert torch.bincount(data.owners).min() == 1
    assert len(data.test_y) > 0


def test_numbered_classes_are_in_the_order_of_numbers(tmp_path, load, paint):
    for name in ("0", "2", "10"):
        for i in range(2):
            paint(tmp_path / "own" / name / f"{i}.png")
    assert load(tmp_path / "own").names == ("0", "2", "10")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d, p: (d / "bird").mkdir(), "class 'bird' has no training image"),
        (
            lambda d, p: p(d / "top.png"),
            r"top.png and dog/9.png are not at the same depth; expected CLASS/IMAGE",
        ),
        (lambda d, p: p(d / "cat" / "deep" / "x.png"), "are not at the same depth"),
        (
            lambda d, p: p(d / "cat " / "x.png"),
            "the class names 'cat' and 'cat ' differ only by blanks",
        ),
    ],
)
def test_a_folder_that_is_not_clear_is_refused(change, words, folder, load, paint):
    change(folder, paint)
    with pytest.raises(CafedclError, match=words):
        load(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d, p: (d / "empty").mkdir(), "client 'empty' has no training image"),
        (
            lambda d, p: p(d / "clinic a" / "ill" / "x.png"),
            "names 'Clinic A' and 'clinic a' differ only by case or blanks",
        ),
        (
            lambda d, p: p(d / "Clinic  B" / "ill" / "x.png"),
            "differ only by case or blanks; rename one of them",
        ),
        (lambda d, p: (d / "c" / "unsure").mkdir(), "class 'unsure' has no training image"),
    ],
)
def test_clients_that_are_not_clear_are_refused(change, words, clinics, load, paint):
    change(clinics, paint)
    with pytest.raises(CafedclError, match=words):
        load(clinics)


def test_a_folder_without_images_says_what_is_expected(tmp_path, load, paint):
    (tmp_path / "own").mkdir()
    with pytest.raises(CafedclError, match="there are no images in it; expected CLASS/IMAGE"):
        load(tmp_path / "own")
    (tmp_path / "own" / "list.csv").write_text("x")
    with pytest.raises(CafedclError, match=r"did you mean .*list.csv\?"):
        load(tmp_path / "own")
    paint(tmp_path / "deep" / "a" / "b" / "c" / "x.png")
    with pytest.raises(CafedclError, match=r"a/b/c/x.png is not at the right depth"):
        load(tmp_path / "deep")
    with pytest.raises(CafedclError, match="there is no such file or folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(CafedclError, match="this format is not supported"):
        load(tmp_path / "x.txt")


def test_hidden_files_and_other_files_are_left_alone(folder, load):
    (folder / ".DS_Store").write_text("x")
    (folder / "cat" / "Thumbs.db").write_text("x")
    (folder / "cat" / "._0.png").write_text("x")
    (folder / "__MACOSX").mkdir()
    (folder / ".git").mkdir()
    assert load(folder).classes == 3


def spoil(folder, n):
    for i in range(n):
        path = folder / "cat" / f"{i}.png"
        path.write_bytes(path.read_bytes()[:-30] if i % 2 else b"not an image")


def test_corrupt_images_are_skipped_and_listed_also_from_the_cache(folder, load, capsys):
    spoil(folder, 7)
    for _ in range(2):
        data = load(folder)
        assert len(data.train_y) + len(data.test_y) == 23
        err = capsys.readouterr().err
        assert err.startswith(f"warning: {folder}: 7 of 30 images cannot be read: ")
        assert "cat/0.png (not an image), cat/1.png" in err
        assert "cat/4.png" in err
        assert "cat/5.png" not in err
        assert err.endswith("and 2 more; skipped\n")


def test_files_that_are_not_taken_for_images_are_named(folder, load, capsys):
    (folder / "cat" / "1.png").rename(folder / "cat" / "1.heic")
    (folder / "dog" / "2.png").rename(folder / "dog" / "2")
    (folder / "dog" / "Thumbs.db").write_bytes(b"")
    (folder / "notes.txt").write_text("beside the classes, not beside images")
    data = load(folder)
    assert len(data.train_y) + len(data.test_y) == 28
    err = capsys.readouterr().err
    assert "2 files are left out (no supported image format)" in err
    assert err.endswith("format): cat/1.heic, dog/2\n")
    (folder / "cat" / "1.heic").rename(folder / "cat" / "1.png")
    assert len(load(folder).train_y) + len(load(folder).test_y) == 29
    assert "a file is left out (no supported image format): dog/2\n" in (capsys.readouterr().err)


def test_a_link_that_leads_nowhere_is_a_broken_image(folder, load, capsys):
    (folder / "cat" / "gone.png").symlink_to("nowhere.png")
    assert len(load(folder).train_y) == 24
    err = capsys.readouterr().err
    assert "1 of 31 images" in err
    assert "cat/gone.png" in err
    with pytest.raises(CafedclError, match=r"cat/gone\.png"):
        load(folder, strict=True)


def test_corrupt_images_are_refused_when_strict_even_after_a_cached_load(folder, load):
    spoil(folder, 2)
    load(folder)
    with pytest.raises(
        CafedclError,
        match=r"2 of 30 images cannot be read: .*; repair or remove them, or set data.strict",
    ):
        load(folder, strict=True)


def test_a_class_whose_images_are_all_corrupt_is_refused_with_the_reason(folder, load):
    spoil(folder, 10)
    with pytest.raises(CafedclError) as refused:
        load(folder)
    said = str(refused.value)
    assert "10 of 30 images cannot be read: cat/0.png (not an image)" in said
    assert said.endswith("class 'cat' has no others; repair them, or remove the class")


def test_nothing_readable_at_all(tmp_path, load, paint):
    paint(tmp_path / "own" / "a" / "x.png").write_bytes(b"")
    with pytest.raises(CafedclError, match=r"1 of 1 images cannot be read: .*; repair them, or"):
        load(tmp_path / "own")


def test_sizes_are_made_equal_to_the_most_common_or_the_one_asked_for(folder, load, paint):
    paint(folder / "cat" / "0.png", 10, (30, 20))
    paint(folder / "cat" / "1.png", 11, (9, 5))
    assert load(folder).shape == (1, 8, 8)
    assert load(folder, size=6).shape == (1, 6, 6)
    assert 10 in pixels(torch.cat([load(folder, size=6).train_x, load(folder, size=6).test_x]))


def test_one_colour_image_makes_all_rgb(folder, load, paint):
    paint(folder / "cat" / "0.png", (200, 0, 7))
    data = load(folder)
    assert data.shape == (3, 8, 8)
    everything = torch.cat([data.train_x, data.test_x])[:, :, 0, 0].tolist()
    assert [200, 0, 7] in everything
    assert [60, 60, 60] in everything


def test_other_kinds_of_pixels(folder, load, paint):
    paint(folder / "cat" / "0.png", 1, mode="1")
    paint(folder / "cat" / "2.png", (77, 128), mode="LA")
    data = load(folder)
    assert data.shape == (1, 8, 8)
    everything = pixels(torch.cat([data.train_x, data.test_x]))
    assert {255, 77} <= set(everything)


def test_photographs_are_turned_upright(tmp_path, load):
    image = Image.fromarray(np.array([[0, 100, 200], [50, 150, 250]], np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("a", "b"):
        (tmp_path / "own" / name).mkdir(parents=True)
        image.save(tmp_path / "own" / name / "x.png", exif=exif)
        image.save(tmp_path / "own" / name / "y.png", exif=exif)
    data = load(tmp_path / "own")
    assert data.train_x[0, 0].tolist() == [[50, 0], [150, 100], [250, 200]]


def test_a_change_of_one_image_is_noticed(folder, load, paint):
    load(folder)
    paint(folder / "cat" / "0.png", 255, (8, 8)).touch()
    data = load(folder)
    assert 255 in pixels(torch.cat([data.train_x, data.test_x]))


def test_a_relative_path_is_enough(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert load_dataset(DataOptions(name="own")).classes == 3


@pytest.mark.parametrize("ending", ["jpg", "png", "tif"])
@pytest.mark.parametrize("bits", [8, 16])
def test_an_image_of_any_format_is_turned_upright_once(ending, bits, tmp_path, load):
    if ending == "jpg" and bits == 16:
        pytest.skip("JPEG has 8 bits")
    lying = np.zeros((8, 12), np.uint8 if bits == 8 else np.uint16)
    lying[:, :6] = np.iinfo(lying.dtype).max
    exif = Image.Exif()
    exif[0x0112] = 6  # the top of the scene is at the right
    for name in "ab":
        (tmp_path / "own" / name).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(lying).save(tmp_path / "own" / name / f"{i}.{ending}", exif=exif)
    data = load(tmp_path / "own")
    assert data.shape == (1, 12, 8)
    assert data.train_x[0, 0, 0].min() > 250
    assert data.train_x[0, 0, -1].max() < 5


@pytest.mark.parametrize("what", ["class", "client"])
def test_names_that_differ_only_by_their_unicode_form_are_refused(what, tmp_path, paint, load):
    for place, name in enumerate(("S\u00fcd", "Su\u0308d")):
        for i in range(4):
            inside = f"{name}/ill" if what == "client" else name
            paint(tmp_path / "own" / inside / f"{i}.png", 10 * place + i)
    with pytest.raises(CafedclError, match=rf"the {what} names .* how their accents are encoded"):
        load(tmp_path / "own")


def test_a_folder_whose_name_is_not_utf8_needs_a_link(folder, load):
    other = folder.with_name("L\udce4sionen")
    try:
        folder.rename(other)
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    with pytest.raises(CafedclError, match=r"not UTF-8 text.* make a link to it"):
        load(other)
    folder.symlink_to(other)
    assert load(folder).names == ("Owl", "cat", "dog")


def test_the_recycle_bin_of_a_drive_is_no_class(folder, load):
    (folder / "$RECYCLE.BIN").mkdir()
    assert load(folder).names == ("Owl", "cat", "dog")


def test_one_image_per_class_is_too_few(tmp_path, paint, load):
    for value, name in enumerate("ab"):
        paint(tmp_path / "own" / name / "0.png", value)
    with pytest.raises(CafedclError, match="too few images to hold some out for testing"):
        load(tmp_path / "own")


@pytest.mark.parametrize(
    ("layout", "kind", "name"),
    [
        ("{}/a/1.png {}/b/2.png", "client", "test_set"),
        ("north/a/1.png north/b/1.png {}/a/1.png {}/b/2.png", "client", "Test"),
        ("cat/1.png cat/2.png dog/1.png dog/2.png {}/1.png {}/2.png", "class", "validation"),
    ],
)
def test_folders_that_look_like_test_images_are_named(
    layout, kind, name, tmp_path, paint, load, capsys
):
    for number, path in enumerate(layout.format(*[name] * layout.count("{}")).split()):
        for copy in range(4):
            paint(tmp_path / "own" / path.replace(".png", f"-{copy}.png"), 10 * number + copy)
    load(tmp_path / "own")
    told = f"the folder '{name}' is taken for a {kind} and trained on"
    assert told in capsys.readouterr().err


def test_words_that_only_contain_test_are_classes(folder, load, paint, capsys):
    for i in range(4):
        paint(folder / "contested" / f"{i}.png", 200 + i)
    load(folder)
    assert "taken for" not in capsys.readouterr().err


def test_a_class_of_a_client_with_no_readable_file_is_named(clinics, load, capsys):
    (clinics / "c" / "rare").mkdir()
    (clinics / "c" / "rare" / "1.heic").write_bytes(b"x")
    paths = sorted((clinics / "Clinic A" / "well").iterdir())
    for path in paths:
        path.rename(path.with_suffix(".heic"))
    (clinics / "c" / "rare" / "1.heic").unlink()
    (clinics / "c" / "rare").rmdir()
    load(clinics)
    err = capsys.readouterr().err
    assert f"{len(paths)} files are left out" in err
    assert "Clinic A/well/0.heic" in err
