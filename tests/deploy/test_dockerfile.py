"""The Dockerfile, linted: no image can be built in the tests."""

from __future__ import annotations

import ast
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
OURS = {"fleet", "cluster", "extender", "controller", "cli", "kwok"}


def instructions() -> list[tuple[str, str]]:
    joined = TEXT.replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


def copied() -> set[str]:
    sources = [rest.split()[0] for word, rest in instructions() if word == "COPY" and not rest.startswith("--from")]
    return set(sources)


def test_bases_are_slim_stages_of_ours_and_never_latest() -> None:
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    names = {rest.split()[2] for word, rest in instructions() if word == "FROM"}
    assert len(stages()) == 3
    for base in bases:
        assert base in names or base.startswith("python:3.11-slim")
    assert "latest" not in TEXT


def test_it_runs_as_a_number_that_is_not_root() -> None:
    users = [rest for word, rest in stages()[-1] if word == "USER"]
    assert users == ["65532:65532"]


def test_no_shell_starts_anything() -> None:
    for word, rest in instructions():
        if word in {"RUN", "CMD", "ENTRYPOINT"}:
            assert isinstance(json.loads(rest), list), f"{word} {rest}"


def test_dependencies_are_hash_checked_and_come_before_the_source() -> None:
    first, second, last = stages()
    assert any("--require-hashes" in rest for word, rest in first if word == "RUN")
    assert [rest.split()[0] for word, rest in first if word == "COPY"] == ["requirements-runtime.lock"]
    assert "fleet" in {rest.split()[0] for word, rest in second if word == "COPY"}
    assert not [rest for word, rest in last if word == "RUN"]


def test_no_package_index_is_named() -> None:
    assert "://" not in TEXT
    assert "index-url" not in TEXT


def test_the_programs_find_every_package_of_ours_that_they_import() -> None:
    packages = copied() & OURS
    assert {"extender", "controller"} <= packages
    for package in packages:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                modules = (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                    if isinstance(node, ast.ImportFrom) and node.level == 0
                    else []
                )
                for module in modules:
                    assert module.split(".")[0] in packages or module.split(".")[0] not in OURS, f"{path}: {module}"


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    lines = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied()
