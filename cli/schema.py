"""Turns msgspec structs into structural OpenAPI schemas, the form that a CustomResourceDefinition asks for.

Structural means: nothing is referenced, every node has one type, null is not a value. `X | None` is therefore an
optional field without default, and components are written out where they are used.
"""

from __future__ import annotations

import inspect as python_inspect
from typing import Any

import msgspec
from msgspec import inspect

from fleet.objects import LabelSelector

Schema = dict[str, Any]

LIST_KEYS = {"ResourceCondition": ["type"], "HeldNode": ["name"]}
"""Structs whose lists are maps to the API server, by these keys; every other list is written as a whole."""

_SELECTOR_ENTRIES = 64
_LABEL_KEY_LENGTH = 317  # prefix 253, slash, name 63
_LABEL_VALUE_LENGTH = 63


class SchemaError(TypeError):
    """A type in a struct has no structural schema; the message names the field."""


def object_schema(struct: type[msgspec.Struct], *, defaults: bool) -> Schema:
    """The structural schema of a struct; with `defaults`, optional fields carry the struct's default.

    CEL rules come from the struct's `rules`. Raises SchemaError for a type that cannot be expressed.
    """
    if struct is LabelSelector:
        return _label_selector()
    properties: Schema = {}
    required = []
    for field in msgspec.structs.fields(struct):
        properties[field.encode_name] = _field(struct, field, defaults=defaults)
        if field.required:
            required.append(field.encode_name)
    schema: Schema = {"type": "object"}
    described = struct.__dict__.get("__doc__")
    if described:
        schema["description"] = python_inspect.cleandoc(described)
    if required:
        schema["required"] = required
    schema["properties"] = properties
    rules = getattr(struct, "rules", ())
    if rules:
        schema["x-kubernetes-validations"] = [_rule(rule) for rule in rules]
    return schema


def _rule(rule: Any) -> Schema:
    shown = {"rule": rule.rule, "message": rule.message}
    if rule.field_path is not None:
        shown["fieldPath"] = rule.field_path
    return shown


def _field(struct: type[msgspec.Struct], field: msgspec.structs.FieldInfo, *, defaults: bool) -> Schema:
    where = f"{struct.__name__}.{field.name}"
    schema = _schema(inspect.type_info(field.type), where, defaults=defaults)
    if defaults and not field.required:
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        plain = msgspec.to_builtins(default)
        if plain is not None and plain not in ("", []):  # absent says the same
            schema["default"] = plain
    return schema


def _schema(kind: inspect.Type, where: str, *, defaults: bool) -> Schema:
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            schema = _schema(inner, where, defaults=defaults)
            return {"type": schema["type"]} | (extra or {}) | schema | (extra or {})
        case inspect.UnionType(types=types):
            some = [each for each in types if not isinstance(each, inspect.NoneType)]
            if len(some) != 1:
                raise SchemaError(f"{where}: a structural schema has one type, this field has {len(some)}")
            return _schema(some[0], where, defaults=defaults)
        case inspect.StructType(cls=cls):
            return object_schema(cls, defaults=defaults)
        case inspect.VarTupleType(item_type=item):
            return _list(kind, item, where, defaults=defaults)
        case inspect.DictType(value_type=value):
            schema = {"type": "object", "additionalProperties": _schema(value, where, defaults=defaults)}
            return schema | _bounds(kind, min_length="minProperties", max_length="maxProperties")
        case _:
            return _scalar(kind, where)


def _list(kind: inspect.VarTupleType, item: inspect.Type, where: str, *, defaults: bool) -> Schema:
    schema: Schema = {"type": "array", "items": _schema(item, where, defaults=defaults)}
    schema |= _bounds(kind, min_length="minItems", max_length="maxItems")
    keys = LIST_KEYS.get(item.cls.__name__) if isinstance(item, inspect.StructType) else None
    if keys is None:
        return schema | {"x-kubernetes-list-type": "atomic"}
    return schema | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}


def _scalar(kind: inspect.Type, where: str) -> Schema:
    match kind:
        case inspect.EnumType(cls=cls):
            return {"type": "string", "enum": [member.value for member in cls]}
        case inspect.StrType():
            return {"type": "string"} | _bounds(kind, min_length="minLength", max_length="maxLength", pattern="pattern")
        case inspect.IntType():
            return {"type": "integer", "format": "int64"} | _bounds(kind, ge="minimum", le="maximum")
        case inspect.FloatType():
            return {"type": "number"} | _bounds(kind, ge="minimum", le="maximum")
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case _:
            raise SchemaError(f"{where}: {type(kind).__name__} has no structural schema")


def _bounds(kind: inspect.Type, **names: str) -> Schema:
    return {name: value for attribute, name in names.items() if (value := getattr(kind, attribute, None)) is not None}


def _label_selector() -> Schema:
    """A label selector as Kubernetes means it; bounded, because CEL rules look inside."""
    value = {"type": "string", "maxLength": _LABEL_VALUE_LENGTH}
    key = {"type": "string", "minLength": 1, "maxLength": _LABEL_KEY_LENGTH}
    requirement: Schema = {
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": key,
            "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            "values": {
                "type": "array",
                "items": value,
                "maxItems": _SELECTOR_ENTRIES,
                "x-kubernetes-list-type": "atomic",
            },
        },
        "x-kubernetes-validations": [
            {
                "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
                "message": "In and NotIn need values; Exists and DoesNotExist take none",
                "fieldPath": ".operator",
            }
        ],
    }
    return {
        "type": "object",
        "properties": {
            "matchLabels": {
                "type": "object",
                "additionalProperties": value,
                "maxProperties": _SELECTOR_ENTRIES,
            },
            "matchExpressions": {
                "type": "array",
                "items": requirement,
                "maxItems": _SELECTOR_ENTRIES,
                "x-kubernetes-list-type": "atomic",
            },
        },
        "x-kubernetes-map-type": "atomic",
    }
