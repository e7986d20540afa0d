"""What the documents say is true: links, examples, commands, and every name, field, metric, setting and reason."""

from __future__ import annotations

import asyncio
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import jsonschema
import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry

from cli.main import main
from cluster.client import Api
from controller.metrics import Metrics as ControllerMetrics
from controller.settings import Settings as ControllerSettings
from extender.metrics import Metrics as ExtenderMetrics
from extender.settings import Settings as ExtenderSettings
from extender.state import State
from fleet import names
from fleet.board import Refused
from fleet.fitness import Obstacle
from fleet.kueue import objects as objects_of_kueue
from fleet.reasons import Reason
from fleet.resources import AgreementSpec, ClaimSpec, ClaimStatus, Phase, PoolSpec, PoolStatus
from kwok import kueuefiles, stages
from kwok.admin import Admin, path_of
from kwok.catalogue import NAMED_PATHS
from kwok.controlplane import ControlPlane
from kwok.served import apply_kinds

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "deploy" / "chart" / "crds"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SETTINGS = {"Controller": ControllerSettings, "Extender": ExtenderSettings}
LAB_SOURCES = [*ROOT.glob("kwok/**/*.py"), ROOT / ".ci" / "run"]

each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks of these languages, without their fences."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [body for language, body in found if language in languages]


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def section(text: str, title: str, within: str = "") -> str:
    """From a heading to the next one of its level or above; `within` names the heading to look below."""
    if within:
        text = section(text, within)
    match = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,6}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no heading {title!r}"
    start, level = match.start(2), len(match[1])
    end = re.search(rf"^#{{1,{level}}} ", text[start:], re.MULTILINE)
    return text[start : start + end.start()] if end else text[start:]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row but headings and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    rules = {index for index, line in enumerate(lines) if re.fullmatch(r"[|-]+", line)}
    return [row for index, row in enumerate(cells) if index not in rules and index + 1 not in rules]


def first_codes(text: str) -> list[str]:
    """What stands as code in the first column of a section's tables."""
    return [code for row in rows(text) for code in re.findall(r"`([^`]+)`", row[0])]


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(text_of(page))):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(text_of(file)), target


@each_page
def test_paths_of_the_project_exist(page: Path) -> None:
    folders = "fleet|cluster|extender|controller|cli|kwok|deploy|docs|tests"
    for path in re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./-]*\w)", text_of(page)):
        assert (ROOT / path).exists(), path


def objects(page: Path) -> Iterator[dict[str, Any]]:
    for block in blocks(text_of(page), "yaml"):
        for found in yaml.safe_load_all(block):
            if isinstance(found, dict) and "kind" in found:
                yield found


def strict(schema: Any) -> Any:
    """The schema with every object closed: a field that it does not know is an error, as kubectl has it."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    return closed | {"additionalProperties": False} if "properties" in schema else closed


def schemas() -> dict[str, Any]:
    found = {}
    for file in CRDS.glob("*.yaml"):
        spec = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]
        schema = strict(spec["versions"][0]["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
        found[spec["names"]["kind"]] = schema
    return found


@each_page
def test_yaml_can_be_read_and_our_resources_are_valid(page: Path) -> None:
    known = schemas()
    for block in blocks(text_of(page), "yaml"):
        assert list(yaml.safe_load_all(block))
    for found in objects(page):
        if found["apiVersion"] == names.API_VERSION:
            jsonschema.validate(found, known[found["kind"]])


async def test_the_api_server_takes_every_example(control_plane: ControlPlane, admin: Admin) -> None:
    """Rules and unknown fields included; nothing is kept."""
    assert control_plane.kubeconfig
    for file in CRDS.glob("*.yaml"):
        crd = yaml.safe_load(file.read_text(encoding="utf-8"))
        await admin.apply(crd)
        await admin.wait_for(path_of(crd), _established)
    theirs = await asyncio.to_thread(kueuefiles.crds)
    await apply_kinds(admin, theirs)
    examples = [found for page in PAGES for found in objects(page)]
    assert {found["kind"] for found in examples} >= {"GPUPool", "DrainAgreement", "WholeNodeClaim", "Job"}
    for found in examples:
        here = found
        if "namespace" in found["metadata"]:  # those of the examples do not exist
            here = {**found, "metadata": {**found["metadata"], "namespace": "default"}}
        params = {"dryRun": "All", "fieldValidation": "Strict"}
        await admin.request("POST", path_of(here, collection=True), here, params=params)
    for crd in theirs:
        await admin.delete(path_of(crd))


def _established(crd: Mapping[str, Any] | None) -> bool:
    conditions = (crd or {}).get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    code = [*re.findall(r"`([^`\n]+)`", prose(text_of(page))), *blocks(text_of(page), "sh", "console", "text")]
    for target in [name for piece in code for name in re.findall(r"\bmake ([a-z]+)\b", piece)]:
        assert target in targets, target


def test_contributing_has_every_make_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE)) - {"help", "clean", "bench"}
    assert {
        code.removeprefix("make ").split(" ")[0]
        for code in first_codes(section(text_of(ROOT / "CONTRIBUTING.md"), "Set up"))
    } >= (targets)


@each_page
def test_commands_of_ours_exist_with_their_options(page: Path) -> None:
    lines = "\n".join(blocks(text_of(page), "sh", "console")).replace("\\\n", " ").splitlines()
    code = re.findall(r"`(wholenode [^`\n]+)`", prose(text_of(page)))
    for line in [*lines, *code]:
        if re.match(r"^(\$ )?wholenode( |$)", line):
            check_command(line)


def check_command(line: str) -> None:
    words = shlex.split(re.sub(r"\[(.*?)\]", r"\1", line.removeprefix("$ ")), comments=True)[1:]
    command: click.Command = main
    while words and isinstance(command, click.Group):
        name = words.pop(0)
        if name.startswith("-"):
            break
        assert name in command.commands, line
        command = command.commands[name]
    options = {option for parameter in command.params for option in parameter.opts}
    for word in words:
        assert not word.startswith("--") or word.partition("=")[0] in {*options, "--help"}, line


@pytest.mark.parametrize(
    ("kind", "struct"), [("GPUPool", PoolSpec), ("DrainAgreement", AgreementSpec), ("WholeNodeClaim", ClaimSpec)]
)
def test_every_field_of_a_spec_is_explained_and_no_other(kind: str, struct: type[msgspec.Struct]) -> None:
    table = section(CONCEPTS, kind).split("| field of status")[0]
    wanted = {field.encode_name for field in msgspec.structs.fields(struct)}
    assert {codes[0] for row in rows(table) if (codes := re.findall(r"`([^`]+)`", row[0]))} == wanted
    for row in rows(table):
        (field,) = [one for one in msgspec.structs.fields(struct) if f"`{one.encode_name}`" == row[0]]
        if field.required:
            assert row[1] == "required"
        elif isinstance(field.default, str):
            assert row[1] == f"`{field.default}`"


def test_every_field_of_a_status_is_explained_and_no_other() -> None:
    (table,) = section(CONCEPTS, "WholeNodeClaim").split("| field of status")[1:]
    assert set(first_codes("| x" + table)) == {field.encode_name for field in msgspec.structs.fields(ClaimStatus)}
    pool = section(CONCEPTS, "GPUPool")
    assert all(
        f"`{field.encode_name}`" in pool for field in msgspec.structs.fields(PoolStatus) if field.name != "conditions"
    )


def test_every_phase_is_explained_and_no_other() -> None:
    table = section(CONCEPTS, "The life of a claim")
    assert set(first_codes(table)) == {str(phase) for phase in Phase}


def test_every_reason_that_can_occur_is_explained_and_no_other() -> None:
    code = "".join(text_of(path) for folder in ("fleet", "fleet/kueue") for path in ROOT.glob(f"{folder}/*.py"))
    used = {str(reason) for reason in Reason if re.search(rf"\bReason\.{reason.name}\b", code)}
    found = first_codes(re.split(r"^### ", section(CONCEPTS, "Reasons"), flags=re.MULTILINE)[0])
    assert len(found) == len(set(found))
    assert set(found) == used


def test_the_phases_beside_reasons_exist() -> None:
    table = re.split(r"^### ", section(CONCEPTS, "Reasons"), flags=re.MULTILINE)[0]
    for row in rows(table):
        assert re.match(r"\w+", row[1])[0] in {str(phase) for phase in Phase}, row


def test_every_reason_to_refuse_a_node_is_explained_and_no_other() -> None:
    assert set(first_codes(section(CONCEPTS, "Why a node was refused"))) == {str(one) for one in Obstacle}


def test_every_text_of_the_extender_is_explained_and_no_other() -> None:
    assert set(first_codes(section(CONCEPTS, "What a refused pod is told"))) == {str(one) for one in Refused}


def registry_of(part: str) -> CollectorRegistry:
    if part == "Controller":
        return ControllerMetrics().registry
    api = object.__new__(Api)  # never asked
    return ExtenderMetrics(State(api)).registry


@pytest.mark.parametrize("part", ["Controller", "Extender"])
def test_every_metric_is_explained_with_its_labels_and_no_other(part: str) -> None:
    known = {family.name + ("_total" if family.type == "counter" else "") for family in registry_of(part).collect()}
    table = section(OPERATIONS, part, within="Metrics")
    assert set(first_codes(table)) == known
    source = "".join(text_of(path) for path in sorted((ROOT / part.lower()).glob("*.py")))
    for row in rows(table):
        for name in re.findall(r"`([^`]+)`", row[0]):
            declared = re.search(rf'"{name.removesuffix("_total")}",\s*"[^"]*",\s*(?:labels=)?\[([^\]]*)\]', source)
            labels = set(re.findall(r'"(\w+)"', declared[1])) if declared else set()
            assert set(re.findall(r"`(\w+)`", row[1])) == labels, name


@each_page
def test_metrics_that_are_named_exist(page: Path) -> None:
    families = [family for part in SETTINGS for family in registry_of(part).collect()]
    known = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    for name in re.findall(r"\bwholenode_[a-z_]+", text_of(page)):
        assert name in known, name


@pytest.mark.parametrize("part", ["Controller", "Extender"])
def test_every_setting_is_explained_with_its_default_and_no_other(part: str) -> None:
    settings = SETTINGS[part]
    wanted = {
        f"WHOLENODE_{name.upper()}": "none" if field.default in (None, "") else f"`{field.default}`"
        for name, field in settings.model_fields.items()
    }
    table = rows(section(OPERATIONS, part, within="Settings"))
    assert {row[0].strip("`"): row[1] for row in table} == wanted


@each_page
def test_variables_that_are_named_exist(page: Path) -> None:
    settings = {f"WHOLENODE_{name.upper()}" for one in SETTINGS.values() for name in one.model_fields}
    lab = "".join(text_of(path) for path in LAB_SOURCES if path.exists())
    known = settings | set(NAMED_PATHS.values()) | {f"WHOLENODE_{tool}" for tool in ("HELM", "KUBECTL")}
    known |= set(re.findall(r"\bWHOLENODE_[A-Z_]+", lab))
    for name in re.findall(r"\bWHOLENODE_[A-Z_]*[A-Z]", text_of(page)):
        assert name in known, name


@each_page
def test_keys_that_are_named_exist(page: Path) -> None:
    constants = [*vars(names).values(), *vars(stages).values(), *vars(objects_of_kueue).values()]
    known = {value for value in constants if isinstance(value, str)}
    for key in re.findall(r"(?<![\w.])((?:sim\.)?wholenode\.io/[a-z0-9-]*[a-z0-9])", text_of(page)):
        assert key in known, key


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted = {re.split(r"[<>=]", one)[0] for one in declared}
    record = text_of(ROOT / "docs" / "decisions" / "0004-dependencies.md")
    assert wanted <= set(re.findall(r"`([\w.-]+)`", record))
    table = {code for row in rows(record) for code in re.findall(r"`([^`]+)`", row[0])}
    assert table == {re.split(r"[<>=]", one)[0] for one in project["project"]["dependencies"]}


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = text_of(folder / "README.md")
    records = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert [path.name for path in records] == re.findall(r"\]\((\d{4}[\w-]+\.md)\)", index)
    for number, path in enumerate(records, start=1):
        text = text_of(path)
        assert text.startswith(f"# {number:04d}: ")
        assert [part for part in ("Context", "Decision", "Consequences") if f"**{part}.**" not in text] == []
