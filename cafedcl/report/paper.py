"""The numbers of the paper's Tables 1 and 2, and the position of a setting in these tables.

Wu et al. 2026, arXiv 2603.03007. Accuracy and standard deviation across clients, in %. The paper
names no data set for Table 2. Judging by the accuracies, it is CIFAR-100 for the number of classes
per client and CIFAR-10 for the rest, with the practical split for the number of clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cafedcl.report.setting import Setting

TABLE_1 = """
fedavg   60.32 12.03 29.74  4.08 82.95 11.59 48.73 19.15 24.47  7.58 72.38 14.96
fedprox  61.82 10.07 31.42  4.25 84.27  8.13 60.29  9.11 30.60  5.49 72.45  7.21
moon     82.06 11.19 46.23  5.15 92.77  6.53 84.94 13.44 48.70  6.95 93.24  5.40
fedproto 88.33  8.13 52.81  6.58 95.50  1.69 89.45  7.78 52.14  5.90 94.88  2.63
fedrcl   87.26  8.79 49.99  8.29 93.57  3.33 86.09  9.30 47.73  8.21 91.25  5.01
fedproc  44.53  6.17 18.98  5.62 65.66  3.57 38.74  6.86 17.04  3.19 63.20  3.71
fedlc    78.48  7.10 44.75  4.70 90.45  7.08 80.11 10.51 46.34  6.61 90.85  7.80
mp-fedcl 86.94  8.46 49.70  6.26 94.30  3.28 87.37  7.55 47.27  5.98 90.05  4.33
fedtgp   89.24  7.03 51.30  8.59 94.47  4.54 89.57  8.46 51.65  6.97 94.59  4.03
cafedcl  91.15  4.87 54.01  3.65 96.84  1.54 90.36  5.08 54.57  2.82 97.00  2.25
"""
"""Accuracy and std on CIFAR-10, CIFAR-100 and EMNIST: practical (Dirichlet), then pathological."""
TABLE_2_LEFT = """
fedavg   52.54 12.24 86.67  6.19 43.28 22.81 35.29 17.50
fedprox  55.48 14.05 87.93  6.44 48.30 11.32 37.33 13.72
moon     65.79 10.40 90.95  5.52 54.23 15.73 42.61 18.25
fedproto 66.86  8.35 91.27  5.24 55.48  9.56 44.46 10.29
fedrcl   68.30  9.83 92.56  4.77 53.93 10.36 43.08 10.78
fedproc  35.68  9.11 84.33  6.80 30.65  8.41 25.49 11.97
fedlc    67.33  7.26 91.90  5.03 53.66 13.08 42.41  9.28
mp-fedcl 66.18  6.79 91.21  4.52 57.21  9.37 45.15 10.63
fedtgp   67.14  7.01 92.58  4.33 58.67  7.55 45.74  7.82
cafedcl  70.22  5.17 93.96  4.07 60.14  5.58 46.53  6.47
"""
"""Accuracy and std for α = 0.05 and 1, and IR = 50 and 100."""
TABLE_2_RIGHT = """
fedavg   20.87  7.12 29.66  2.59 56.73 12.88 54.14 13.65
fedprox  28.56  6.28 32.70  2.85 58.50 10.12 55.94 10.47
moon     56.33  4.95 25.49  5.22 79.51 11.58 78.19 10.66
fedproto 62.12  4.66 35.06  4.41 83.07  9.92 80.44 10.25
fedrcl   60.29  3.98 34.77  2.54 84.08  8.73 82.75  9.11
fedproc  29.81  4.02 15.88  4.45 42.24  7.02 41.52  7.31
fedlc    55.09  5.17 34.70  3.32 75.32  7.60 73.09  8.51
mp-fedcl 62.94  3.19 36.59  3.21 82.25 10.20 79.62 10.55
fedtgp   64.16  4.66 36.41  2.76 83.77  8.24 81.95  8.90
cafedcl  65.85  2.56 39.22  2.48 85.16  5.92 83.60  6.39
"""
"""Accuracy and std for 10 and 50 classes per client, and for 50 and 100 clients."""
COLUMNS_1 = tuple(
    (kind, data)
    for kind in ("dirichlet", "pathological")
    for data in ("cifar10", "cifar100", "emnist")
)
COLUMNS_2 = (
    ("alpha", "0.05"), ("alpha", "1"), ("ir", "50"), ("ir", "100"),
    ("classes", "10"), ("classes", "50"), ("clients", "50"), ("clients", "100"),
)  # fmt: skip

Figures = dict[str, tuple[float, float]]
"""Accuracy and std by method."""


def columns(table: str, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Figures]:
    """Return the columns of a table as the paper prints it."""
    found: dict[tuple[str, str], Figures] = {name: {} for name in names}
    for line in table.strip().splitlines():
        method, *numbers = line.split()
        for at, name in enumerate(names):
            found[name][method] = (float(numbers[2 * at]), float(numbers[2 * at + 1]))
    return found


FIRST = columns(TABLE_1, COLUMNS_1)
SECOND = {
    **columns(TABLE_2_LEFT, COLUMNS_2[:4]),
    **columns(TABLE_2_RIGHT, COLUMNS_2[4:]),
}

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "emnist": "EMNIST"}
CLASSES_PER_CLIENT = {"cifar10": "2", "cifar100": "20", "emnist": "2"}
"""Our assumption for the default of the pathological split, which the paper does not state."""
FACTORS = {
    "alpha": ("Dirichlet parameter", "α = {}"),
    "ir": ("Imbalance ratio", "IR = {}"),
    "classes": ("Classes per client", "C/Client = {}"),
    "clients": ("Number of clients", "{} clients"),
}


@dataclass(frozen=True)
class PaperPosition:
    """The position of a setting in the paper's tables.

    ``table`` is 1 for the two default settings, 2 if one factor is changed, and 3 otherwise.
    """

    table: int
    heading: str
    title: str
    figures: Figures = field(default_factory=dict)
    """The paper's accuracy and std by method, in %; empty if it reports none."""


def paper_position(setting: Setting) -> PaperPosition:
    """Return the position of a setting in the paper's tables, with the paper's numbers."""
    data = "emnist" if setting.data.startswith("emnist") else setting.data
    if setting.data.startswith("emnist-"):
        name = setting.data.upper()
    else:
        name = DATA.get(data, Path(setting.data).name)
    if setting.kind == "pathological" and data not in CLASSES_PER_CLIENT:
        name += f", C/Client = {setting.value}"
    if setting.others:
        name += f" ({setting.others})"
    factor, value = changed_factor(setting, data)
    if factor is None:
        kind = setting.kind
        heading = {
            "dirichlet": f"Practical heterogeneous (α = 0.1, K = {setting.clients})",
            "pathological": f"Pathological heterogeneous (K = {setting.clients}, IR = 10)",
        }[kind]
        return PaperPosition(1, heading, name, FIRST.get((kind, data), {}))
    if factor in FACTORS:
        heading, form = FACTORS[factor]
        regime = "practical" if setting.kind == "dirichlet" else "pathological"
        heading += f" ({regime})" if factor == "clients" else ""
        home = "cifar100" if factor == "classes" else "cifar10"
        known = data == home and (factor != "clients" or regime == "practical")
        figures = SECOND.get((factor, value), {}) if known else {}
        if figures:
            return PaperPosition(2, heading, f"{name}, {form.format(value)}", figures)
    # The paper's headings name one factor, and omit the others, which its readers know.
    return PaperPosition(3, f"{setting.split}, K = {setting.clients}", name)


def changed_factor(setting: Setting, data: str) -> tuple[str | None, str]:
    """Return the factor in which a setting differs from the paper's defaults, and its value.

    The factor is None for a default setting, and empty if there is not exactly one such factor.
    """
    changed: list[tuple[str, str]] = []
    if setting.kind == "dirichlet" and setting.ir == 1 and is_number(setting.value):
        if float(setting.value) != 0.1:
            changed.append(("alpha", f"{float(setting.value):g}"))
    elif setting.kind == "pathological":
        if setting.ir != 10:
            changed.append(("ir", f"{setting.ir:g}"))
        if setting.value != CLASSES_PER_CLIENT.get(data, setting.value):
            changed.append(("classes", setting.value))
    else:
        return "", ""
    if setting.clients != 20:
        changed.append(("clients", f"{setting.clients}"))
    if not changed:
        return None, ""
    return changed[0] if len(changed) == 1 else ("", "")


def is_number(text: str) -> bool:
    """Return whether a text is a plain number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
