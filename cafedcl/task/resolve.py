"""From config files, flags and settings to one checked config."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Unpack

from cafedcl.augment import find_augmenter
from cafedcl.config.flags import Flags, set_flags
from cafedcl.config.format import read_config
from cafedcl.config.model_options import SOURCES
from cafedcl.config.options import flattened, read_options, to_toml
from cafedcl.config.sections import (
    CHOICES,
    SECTIONS,
    Choice,
    Config,
    assign,
)
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.paths import is_folder
from cafedcl.data import is_own
from cafedcl.methods import find_method, method_names


def resolve(tables: Mapping[str, Any]) -> Config:
    """Check every section and fill in the defaults; raise CafedclError for the first mistake."""
    for name, table in tables.items():
        if name not in SECTIONS and name not in CHOICES:
            section, dot, key = name.partition(".")
            if dot and (section in SECTIONS or section in CHOICES):
                raise CafedclError(
                    f"'{name}': options stand in the table of their section: "
                    f'{{"{section}": {{"{key}": …}}}}'
                )
            raise CafedclError(
                f"[{name}]: there is no such section; {nearest(name, [*CHOICES, *SECTIONS])}"
            )
        if not isinstance(table, Mapping):
            raise CafedclError(f"{name}: a section is expected, such as [{name}]")
    name, chosen = _choice(tables, "method", "cafedcl")
    name, plus, suffix = name.partition("+")
    method, preset = find_method(name)
    recommended = by_section(preset)
    sections: dict[str, Any] = {
        section: read_options(
            cls, with_recommended(tables.get(section, {}), recommended.get(section, {})), section
        )
        for section, cls in SECTIONS.items()
    }
    refuse_privacy_without_kind(tables.get("privacy", {}))
    tail, given = _choice(tables, "augment", suffix or "none")
    if plus and tail != suffix:
        raise CafedclError(
            f"method '{name}+{suffix}': augment.name = {to_toml(tail)} says otherwise"
        )
    options = read_options(method.Options, {**recommended.get("method", {}), **chosen}, "method")
    augment = Choice(tail, read_options(find_augmenter(tail).Options, given, "augment"))
    return Config(method=Choice(name, options), augment=augment, **sections)


def by_section(preset: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a preset's options by section; those without a section's name are the method's."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in preset.items():
        section, _, key = name.rpartition(".")
        found.setdefault(section or "method", {})[key] = value
    return found


def with_recommended(given: Mapping[str, Any], recommended: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section's options with those that a preset recommends; what is given wins.

    If a different choice is given, such as another optimizer, nothing is recommended: the other
    options belong to the recommended choice.
    """
    replaced = any(
        isinstance(value, str) and given.get(name, value) != value
        for name, value in recommended.items()
    )
    return {**given} if replaced else {**recommended, **given}


def replaced_of_preset(tables: Mapping[str, Any], method: str) -> dict[str, tuple[Any, Any]]:
    """Return options whose values in tables differ from a method's preset, with both values.

    The method's own options are not included: tables that name another method do not set them.
    """
    flat = flattened(dict(tables))
    _, preset = find_method(method.partition("+")[0])
    return {
        name: (flat[name], value)
        for name, value in preset.items()
        if "." in name and flat.get(name, value) != value
    }


def refuse_privacy_without_kind(given: Mapping[str, Any]) -> None:
    """Raise an error if privacy has options but no kind: the user believes that it is on.

    Options that differ from their defaults are refused anyway; these may equal them.
    """
    if given and "kind" not in given:
        raise CafedclError(
            f"privacy.{next(iter(given))}: it is set, but privacy.kind is not, so nothing would be "
            "private; set privacy.kind to clients or records"
        )


def _choice(tables: Mapping[str, Any], section: str, default: str) -> tuple[str, dict[str, Any]]:
    """Return a section's name and its other options."""
    options = dict(tables.get(section, {}))
    name = options.pop("name", default)
    if not isinstance(name, str):
        raise CafedclError(f"{section}.name = {to_toml(name)}: a text is expected")
    return name, options


def gather(
    file: str | Path | None = None, *, settings: Iterable[str] = (), **flags: Unpack[Flags]
) -> Config:
    """Resolve a config file, then flags, then ``section.key=value`` settings; later ones win."""
    tables = read_config(file)
    in_file = deepcopy(tables)
    set_flags(tables, flags)
    for setting in settings:
        assign(tables, setting)
    try:
        return resolve(tables)
    except CafedclError as error:
        if file and _problem(in_file) == str(error):
            raise CafedclError(f"{file}: {error}") from None
        raise


def _problem(tables: Mapping[str, Any]) -> str:
    """Return why tables are not a valid config; empty if they are."""
    try:
        resolve(tables)
    except CafedclError as error:
        return str(error)
    return ""


def imported_names(tables: Mapping[str, Any]) -> list[str]:
    """Return the names in a config that would import code from outside this package.

    Every name that is not known to be harmless counts. A colon is harmless in a preset
    (``cafedcl:best``), in a Hugging Face data set (``hf:NAME``) and in a pretrained model
    (``timm:NAME``), which only has weights for code of an installed package.
    """

    def name_of(section: str, key: str = "name") -> str:
        return str(tables.get(section, {}).get(key, ""))

    method, _, suffix = name_of("method").partition("+")
    found = []
    if ":" in method and method.partition(":")[0] not in method_names():
        found.append(method)
    found += [name for name in (suffix, name_of("augment")) if ":" in name]
    model = name_of("model")
    if ":" in model and model.partition(":")[0] not in SOURCES:
        found.append(model)
    found += [name for name in (name_of("train", "transform"),) if name]
    for data in (name_of("data"), name_of("data", "test")):
        if ":" in data and not data.startswith("hf:"):
            found.append(data)
    return found


def read_file_of(config: Config) -> str:
    """Return a file or folder that a config reads on this machine; empty if there is none.

    In a deployment, the data set and the split are those of the sites, whatever the config names.
    """
    named = [config.model.weights]
    if not config.at_sites:
        named += [config.data.dir, config.split.file]
        named += [name for name in (config.data.name, config.data.test) if name and is_own(name)]
    if config.model.source == "hf":
        place = config.model.name.partition(":")[2]
        named += [place] if is_folder(place) else []
    return next(filter(None, named), "")
