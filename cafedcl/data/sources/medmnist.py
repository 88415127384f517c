"""The 2D classification sets of MedMNIST, 28×28, each one ``.npz`` file."""

from collections.abc import Sequence
from pathlib import Path

from cafedcl.config.data_options import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import checked_dataset
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.download import Remote
from cafedcl.data.files.formats import AGAIN, images_and_labels, read_npz
from cafedcl.data.sources.base import FileForm, Reader, Source

ADDRESS = "https://zenodo.org/records/10519652/files"
ORGANS = (
    "bladder",
    "femur-left",
    "femur-right",
    "heart",
    "kidney-left",
    "kidney-right",
    "liver",
    "lung-left",
    "lung-right",
    "pancreas",
    "spleen",
)

SETS: dict[str, tuple[str, str, str, Sequence[str]]] = {
    "pathmnist": (
        "a8b06965200029087d5bd730944a56c1",
        "colon pathology, colour",
        "89,996 + 7,180",
        (
            "adipose",
            "background",
            "debris",
            "lymphocytes",
            "mucus",
            "smooth muscle",
            "normal colon mucosa",
            "cancer-associated stroma",
            "colorectal adenocarcinoma epithelium",
        ),
    ),
    "dermamnist": (
        "0744692d530f8e62ec473284d019b0c7",
        "skin lesions, colour",
        "7,007 + 2,005",
        (
            "actinic keratoses and intraepithelial carcinoma",
            "basal cell carcinoma",
            "benign keratosis-like lesions",
            "dermatofibroma",
            "melanoma",
            "melanocytic nevi",
            "vascular lesions",
        ),
    ),
    "octmnist": (
        "c68d92d5b585d8d81f7112f81e2d0842",
        "retinal OCT, grey",
        "97,477 + 1,000",
        ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    ),
    "pneumoniamnist": (
        "28209eda62fecd6e6a2d98b1501bb15f",
        "chest X-rays, grey",
        "4,708 + 624",
        ("normal", "pneumonia"),
    ),
    "retinamnist": (
        "bd4c0672f1bba3e3a89f0e4e876791e4",
        "fundus photographs, colour",
        "1,080 + 400",
        ("0", "1", "2", "3", "4"),
    ),
    "breastmnist": (
        "750601b1f35ba3300ea97c75c52ff8f6",
        "breast ultrasound, grey",
        "546 + 156",
        ("malignant", "normal, benign"),
    ),
    "bloodmnist": (
        "7053d0359d879ad8a5505303e11de1dc",
        "blood cells, colour",
        "11,959 + 3,421",
        (
            "basophil",
            "eosinophil",
            "erythroblast",
            "immature granulocytes(myelocytes, metamyelocytes and promyelocytes)",
            "lymphocyte",
            "monocyte",
            "neutrophil",
            "platelet",
        ),
    ),
    "tissuemnist": (
        "ebe78ee8b05294063de985d821c1c34b",
        "kidney cortex cells, grey",
        "165,466 + 47,280",
        (
            "Collecting Duct, Connecting Tubule",
            "Distal Convoluted Tubule",
            "Glomerular endothelial cells",
            "Interstitial endothelial cells",
            "Leukocytes",
            "Podocytes",
            "Proximal Tubule Segments",
            "Thick Ascending Limb",
        ),
    ),
    "organamnist": (
        "68e3f8846a6bd62f0c9bf841c0d9eacc",
        "abdominal CT, axial, grey",
        "34,561 + 17,778",
        ORGANS,
    ),
    "organcmnist": (
        "b9ceb9546e10131b32923c5bbeaea2b1",
        "abdominal CT, coronal, grey",
        "12,975 + 8,216",
        ORGANS,
    ),
    "organsmnist": (
        "9ab87b696fb54e2a387ebe992d6ed5f1",
        "abdominal CT, sagittal, grey",
        "13,932 + 8,827",
        ORGANS,
    ),
}
"""Per set: MD5 of the file, description, training and test images, class names."""


def _npz_reader(names: Sequence[str]) -> Reader:
    def read(files: Sequence[Path], options: DataOptions) -> Dataset:  # noqa: ARG001
        arrays = read_npz(files[0])
        # The validation images are left out, as in the published results; clients hold out their
        # own.
        train = images_and_labels(arrays, "train")
        test = images_and_labels(arrays, "test")
        if train is None or test is None:
            official = ("train_images", "train_labels", "test_images", "test_labels")
            missing = next(key for key in official if key not in arrays)
            raise CafedclError(f"{files[0]}: it has no array '{missing}'; {AGAIN}")
        return checked_dataset(files[0], train, test, names)

    return read


SOURCES = tuple(
    Source(
        name,
        f"{about}, 28×28, {len(names)} classes, {count}",
        tuple(
            FileForm((path,), _npz_reader(names))
            for path in (f"{name}.npz", f"medmnist/{name}.npz")
        ),
        (Remote(f"{ADDRESS}/{name}.npz?download=1", md5),),
        folder="medmnist",
    )
    for name, (md5, about, count, names) in SETS.items()
)
