"""The container file of a site, as far as it can be checked without building it."""

import re
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cafedcl.cli.main import app

HOME = Path(__file__).parents[2]
Instructions = list[tuple[str, str]]


@pytest.fixture(scope="module")
def instructions() -> Instructions:
    """The instructions of the file in order, with continued lines joined."""
    text = (HOME / "deploy" / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = (line.partition(" ") for line in joined.splitlines() if line)
    return [(name, " ".join(words.split())) for name, _, words in found]


def values(instructions: Instructions, wanted: str) -> list[str]:
    return [words for name, words in instructions if name == wanted]


def test_it_has_only_instructions_that_are_known(instructions: Instructions) -> None:
    assert instructions[0][0] == "FROM"
    known = {"FROM", "ARG", "COPY", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions} <= known


def test_the_image_is_slim_with_a_python_that_the_package_takes(instructions: Instructions) -> None:
    (image,) = values(instructions, "FROM")
    major, minor = re.fullmatch(r"docker\.io/library/python:(\d+)\.(\d+)-slim", image).groups()
    assert (int(major), int(minor)) >= (3, 11)


def test_a_site_runs_without_rights(instructions: Instructions) -> None:
    names = [name for name, _ in instructions]
    (user,) = values(instructions, "USER")
    assert int(user) > 0
    assert any(f"useradd --uid {user} " in words for words in values(instructions, "RUN"))
    assert "RUN" not in names[names.index("USER") :], "nothing is installed by that user"


def test_the_extras_and_the_constraints_exist(instructions: Instructions) -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (install, _) = values(instructions, "RUN")
    (extras,) = re.findall(r"\.whl\)\[(.+?)\]", install)
    assert extras == "flower,privacy"
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (copied,) = values(instructions, "COPY")
    assert copied == "constraints.txt dist/cafedcl-*.whl /tmp/install/"
    assert (HOME / "constraints.txt").is_file()


def test_what_it_runs_is_a_command(instructions: Instructions) -> None:
    (entry,) = values(instructions, "ENTRYPOINT")
    (argument,) = values(instructions, "CMD")
    program, *words = re.findall(r'"(.+?)"', entry)
    assert program == typer.main.get_command(app).name
    assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0
    assert re.findall(r'"(.+?)"', argument) == values(instructions, "WORKDIR")
