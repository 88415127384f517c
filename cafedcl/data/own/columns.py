"""What the columns of a table mean, by their names; and which ones are not used."""

import re
import shlex
from collections.abc import Mapping, Sequence

from cafedcl.config.data_options import NONE, DataOptions
from cafedcl.core.errors import CafedclError, nearest

RoleWords = Mapping[str, tuple[str, ...]]

TABLE_WORDS: RoleWords = {
    "path": ("path", "image", "file", "filename"),
    "label": ("label", "class"),
    "split": ("split",),
    "client": ("client", "site", "hospital", "institution"),
    "source": ("source",),
    "group": ("patient", "patient_id", "lesion", "lesion_id", "group"),
}
"""The names of columns by their role; of several, the first one is used."""
CHOSEN = ("client", "group")
"""The roles whose column an option may name: data.client and data.group."""
LOOKALIKES: RoleWords = {
    "client": (
        "centre", "center", "clinic", "clinics", "clients", "sites", "hospitals", "institute",
        "institutions", "department", "facility", "location", "scanner", "device", "vendor",
        "manufacturer", "user", "owner", "station", "country", "city", "line", "plant", "factory",
        "machine", "camera", "ward", "branch",
    ),
    "group": (
        "patients", "subject", "person", "participant", "case", "study", "series", "lesions",
        "eye", "specimen", "slide", "family", "mrn", "track",
    ),
    "split": ("fold", "partition", "subset", "set", "part", "phase", "usage"),
    "label": (
        "labels", "diagnosis", "dx", "target", "category", "finding", "findings", "classes",
        "disease", "outcome", "y", "species", "kind",
    ),
    "path": ("paths", "images", "files", "filenames", "filepath", "img", "name", "url", "x"),
}  # fmt: skip
"""RoleWords in names that suggest a role."""
ADVICE = {
    "client": "if it is the client, set data.client = {}",
    "group": "if its images belong together, add --group {}",
    "split": "if it says train or test, rename it to split",
    "label": "if it is the class, rename it to label",
    "path": "if it is the image's file, rename it to path",
}


def find_columns(
    where: object, names: Sequence[str], options: DataOptions, words: RoleWords = TABLE_WORDS
) -> tuple[dict[str, str], list[str]]:
    """Return the columns by their role, and remarks on those that are not used.

    Upper and lower case do not matter.
    """
    by_lower: dict[str, str] = {}
    for name in names:
        other = by_lower.setdefault(str(name).strip().lower(), name)
        if other != name:
            raise CafedclError(
                f"{where}: the columns '{other}' and '{name}' differ only by case or blanks; "
                "rename one of them"
            )
    chosen = {"client": options.client, "group": options.group}
    found: dict[str, str] = {}
    for role, spellings in words.items():
        wanted = chosen.get(role, "")
        if wanted == NONE:
            continue
        if wanted:
            found[role] = _chosen_column(where, role, wanted, names)
            continue
        present = [by_lower[word] for word in spellings if word in by_lower]
        # A column that an option names has no other role.
        present = [name for name in present if name not in chosen.values()]
        if present:
            found[role] = present[0]
    # A column of clients takes precedence over one of sources, which could also be clients.
    if "client" in found:
        found.pop("source", None)
    for role in ("path", "label"):
        if role in found:
            continue
        for option, column in chosen.items():
            if column.strip().lower() in words[role]:
                raise CafedclError(
                    f"{where}: data.{option} = {column}: this column is the {role} of the images; "
                    "name another one"
                )
        raise CafedclError(f"{where}: there is no column {_expected(role, names, words)}")
    return found, _remarks(where, names, found, options)


def _chosen_column(where: object, role: str, wanted: str, names: Sequence[str]) -> str:
    if wanted in names:
        return wanted
    raise CafedclError(
        f"{where}: data.{role} = {wanted}: there is no such column; "
        f"{nearest(wanted, [str(name) for name in names])}"
    )


def _expected(role: str, names: Sequence[str], words: RoleWords) -> str:
    text = f"{' or '.join(words[role])}; its columns are: {', '.join(map(str, names)) or 'none'}"
    similar = [name for name in names if role_of_lookalike(str(name)) == role]
    return f"{text}; {similar[0]}: {advice(role, similar[0])}" if similar else text


def advice(role: str, name: object) -> str:
    """Return what to do if a column has this role; its name can be copied into a shell."""
    # Quote only names that are pasted into a shell; others are shown as they are.
    word = shlex.quote(str(name)) if role in ("client", "group") else str(name)
    return ADVICE[role].format(word)


def role_of_lookalike(name: str) -> str | None:
    """Return the role that a column's name suggests, or None."""
    parts = re.split(r"[^a-z0-9]+", name.strip().lower())
    for role, words in LOOKALIKES.items():
        own = TABLE_WORDS[role]
        if any(part in words or part in own for part in parts):
            return role
    return None


def _remarks(
    where: object, names: Sequence[str], found: dict[str, str], options: DataOptions
) -> list[str]:
    switched_off = [role for role in CHOSEN if getattr(options, role) == NONE]
    unused = []
    for name in names:
        if name in found.values():
            continue
        role = role_of_lookalike(str(name))
        text = str(name)
        if role is not None and role not in found and role not in switched_off:
            text += f" ({advice(role, name)})"
        unused.append(text)
    remarks = []
    if "source" in found:
        remarks.append(f"{where}: --split source makes the values of '{found['source']}' clients")
    if unused:
        plural = "columns are" if len(unused) > 1 else "column is"
        remarks.append(f"{where}: {len(unused)} {plural} not used: {', '.join(unused)}")
    return remarks
