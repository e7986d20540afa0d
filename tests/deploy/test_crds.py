"""The generated CustomResourceDefinitions: checked in, structural, and of one mind with the Python structs."""

from __future__ import annotations

import copy
import functools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import msgspec
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Meta, inspect

from cli.crds import crd, crds, render_all
from cli.schema import SchemaError, object_schema
from fleet.resources import KINDS, AgreementSpec, ClaimSpec, DrainAgreement, DrainRecord, GPUPool, WholeNodeClaim

CRDS = Path(__file__).resolve().parents[2] / "deploy" / "chart" / "crds"
PARTS = [(kind, part) for kind in KINDS for part in ("spec", "status")]
formats = jsonschema.FormatChecker(formats=())


@formats.checks("date-time", raises=ValueError)
def _is_time(text: object) -> bool:
    return not isinstance(text, str) or datetime.fromisoformat(text).tzinfo is not None


def schema_of(kind: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def part_type(kind: type[Any], part: str) -> type[msgspec.Struct]:
    [field] = [each for each in msgspec.structs.fields(kind) if each.name == part]
    found: type[msgspec.Struct] = field.type
    return found


def walk(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [each for item in schema for each in walk(item)]
    if not isinstance(schema, dict):
        return []
    return [schema, *(each for value in schema.values() for each in walk(value))]


def test_the_checked_in_files_are_what_the_structs_say() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in CRDS.glob("*.yaml")} == render_all()


def test_check_names_a_file_that_is_out_of_date_and_the_cure(tmp_path: Path) -> None:
    run = CliRunner()
    assert run.invoke(crds, ["--write", str(tmp_path)]).exit_code == 0
    assert run.invoke(crds, ["--check", str(tmp_path)]).exit_code == 0
    (tmp_path / "gpupools.yaml").write_text("old", encoding="utf-8")
    (tmp_path / "drainagreements.yaml").unlink()
    told = run.invoke(crds, ["--check", str(tmp_path)])
    assert told.exit_code == 1
    assert "gpupools.yaml" in told.output
    assert "drainagreements.yaml" in told.output
    assert "wholenodeclaims.yaml" not in told.output
    assert f"wholenode crds --write {tmp_path}" in told.output


def test_without_an_option_the_command_prints_all() -> None:
    told = CliRunner().invoke(crds, [])
    assert [each["spec"]["names"]["kind"] for each in yaml.safe_load_all(told.output)] == [
        kind.definition.kind for kind in KINDS
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_structural(kind: type[Any]) -> None:
    text = json.dumps(schema_of(kind))
    for word in ("$ref", "anyOf", "nullable", '"title"', "preserve-unknown-fields", '"null"'):
        assert word not in text
    jsonschema.Draft202012Validator.check_schema(schema_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_status_has_no_defaults(kind: type[Any]) -> None:
    assert not [node for node in walk(schema_of(kind)["properties"]["status"]) if "default" in node]


def filled_in(schema: dict[str, Any], value: Any) -> Any:
    """What the API server stores: absent fields with a default get it, at every depth."""
    if not isinstance(value, dict):
        return value
    for name, field in schema.get("properties", {}).items():
        if name not in value and "default" in field:
            value[name] = copy.deepcopy(field["default"])
        if name in value:
            value[name] = filled_in(field, value[name])
    return value


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        (GPUPool, {"nodeSelector": {"matchLabels": {"a": "b"}}, "accepts": "Small", "cardsPerNode": 8}),
        (DrainAgreement, {"beneficiaries": [{"namespace": "b"}]}),
        (WholeNodeClaim, {"nodes": 1}),
        (
            DrainRecord,
            {"pod": "p", "podUid": "1", "node": "n", "cards": 1, "at": "2027-01-04T12:00:00Z", "claim": "b/c"}
            | {"claimUid": "2", "beneficiary": "b"},
        ),
    ],
)
def test_spec_defaults_of_api_server_and_python_agree(kind: type[Any], least: dict[str, Any]) -> None:
    struct = part_type(kind, "spec")
    stored = filled_in(schema_of(kind)["properties"]["spec"], copy.deepcopy(least))
    assert msgspec.convert(stored, struct) == msgspec.convert(least, struct)
    explicit = {
        field.encode_name
        for field in msgspec.structs.fields(struct)
        if not field.required and field.default is not None and field.default != ""
    }
    assert explicit <= set(stored)


def names(struct: type[msgspec.Struct]) -> Any:
    """Field names of a struct as a tree, read from msgspec's own schema, not from ours."""
    [reference], components = msgspec.json.schema_components([struct])

    def tree(schema: dict[str, Any]) -> Any:
        if "$ref" in schema:
            return tree(components[schema["$ref"].removeprefix("#/$defs/")])
        if "anyOf" in schema:
            return tree(next(each for each in schema["anyOf"] if each.get("type") != "null"))
        if "items" in schema:
            return [tree(schema["items"])]
        if "properties" in schema:
            return {name: tree(field) for name, field in schema["properties"].items()}, set(schema["required"])
        return None

    return tree(reference)


def ours(schema: dict[str, Any]) -> Any:
    if "items" in schema:
        return [ours(schema["items"])]
    if "properties" in schema:
        return {name: ours(field) for name, field in schema["properties"].items()}, set(schema.get("required", []))
    return None


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_every_field_is_in_both(kind: type[Any], part: str) -> None:
    assert ours(schema_of(kind)["properties"][part]) == names(part_type(kind, part))


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Any valid value of a msgspec type."""
    match kind:
        case inspect.Metadata(type=inner):
            return values(inner)
        case inspect.UnionType(types=types):
            return st.one_of(*(values(each) for each in types))
        case inspect.StructType(cls=cls) if cls.__name__ == "Requirement":
            return st.just(cls(key="app", operator="In", values=("a", "b")))
        case inspect.StructType(cls=cls, fields=fields):
            needed = {field.name: values(field.type) for field in fields if field.required}
            rest = {field.name: values(field.type) for field in fields if not field.required}
            return st.fixed_dictionaries(needed, optional=rest).map(lambda given_: cls(**given_))
        case inspect.VarTupleType(item_type=item, min_length=low):
            return st.lists(values(item), min_size=low or 0, max_size=2).map(tuple)
        case inspect.DictType(key_type=key, value_type=value, min_length=low):
            return st.dictionaries(values(key), values(value), min_size=low or 0, max_size=3)
        case inspect.StrType():
            return texts(kind)
        case _:
            return scalars(kind)


@functools.cache
def parts(kind: type[Any], part: str) -> st.SearchStrategy[Any]:
    """Any valid spec or status; made once, because making the strategies takes longer than drawing from them."""
    return values(inspect.type_info(part_type(kind, part)))


def texts(kind: inspect.StrType) -> st.SearchStrategy[str]:
    if kind.pattern is not None:
        longest = kind.max_length or 64
        return st.from_regex(kind.pattern, fullmatch=True).filter(lambda text: len(text) <= longest)
    return st.text(st.characters(codec="utf-8"), min_size=kind.min_length or 0, max_size=20)


def scalars(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.IntType(ge=low, le=high):
            return st.integers(-(2**31) if low is None else low, 2**31 if high is None else high)
        case inspect.FloatType():
            return st.floats(allow_nan=False, allow_infinity=False)
        case inspect.BoolType():
            return st.booleans()
        case inspect.DateTimeType():
            return st.datetimes(timezones=st.just(UTC))
        case inspect.NoneType():
            return st.none()
    raise AssertionError(kind)


def checker(kind: type[Any], part: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(kind)["properties"][part], format_checker=formats)


@pytest.mark.parametrize(("kind", "part"), PARTS)
@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_what_python_writes_the_schema_accepts(kind: type[Any], part: str, data: st.DataObject) -> None:
    value = data.draw(parts(kind, part))
    checker(kind, part).validate(json.loads(msgspec.json.encode(value)))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


@pytest.mark.parametrize(("kind", "part"), PARTS)
@given(data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_python_and_schema_refuse_the_same(kind: type[Any], part: str, data: st.DataObject) -> None:
    struct = part_type(kind, part)
    value = json.loads(msgspec.json.encode(data.draw(parts(kind, part))))
    # Python trusts what the API server let through in a label selector: the schema is stricter there.
    spots = [place for place in places(value) if place and "podSelector" not in place]
    if not spots:
        return
    odd = st.sampled_from(["", "x", "Wait", "10m", "a/b", -1, 0, 65, 2000, 1.5, True, [], {}, "y" * 5000])
    put(value, data.draw(st.sampled_from(spots)), data.draw(odd))
    try:
        msgspec.convert(value, struct)
        accepted = True
    except msgspec.ValidationError:
        accepted = False
    assert checker(kind, part).is_valid(value) == accepted


def test_rules_bounds_and_descriptions_reach_the_schema() -> None:
    claim = schema_of(WholeNodeClaim)["properties"]["spec"]
    assert [rule["rule"] for rule in claim["x-kubernetes-validations"]] == [rule.rule for rule in ClaimSpec.rules]
    assert claim["properties"]["nodes"]["description"] == "Whole nodes wanted, all or none."
    agreement = object_schema(AgreementSpec, defaults=True)
    assert agreement["properties"]["beneficiaries"]["maxItems"] == 64
    assert agreement["properties"]["patience"]["maxLength"] == 32
    assert agreement["properties"]["expires"]["format"] == "date-time"
    assert "default" not in agreement["properties"]["expires"]
    assert schema_of(GPUPool)["description"] == "A set of nodes that serves one request class."


def test_lists_say_how_they_merge() -> None:
    lists = [node for kind in KINDS for node in walk(schema_of(kind)) if node.get("type") == "array"]
    assert all("x-kubernetes-list-type" in each for each in lists)
    status = schema_of(WholeNodeClaim)["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert status["nodes"]["x-kubernetes-list-map-keys"] == ["name"]


def test_a_type_without_a_structural_schema_is_refused_by_name() -> None:
    class Odd(msgspec.Struct):
        both: Annotated[int | str, Meta(description="two types")]

    with pytest.raises(SchemaError, match=r"Odd\.both"):
        object_schema(Odd, defaults=False)
