"""Hypothesis strategies made from a JSON schema, as far as the extender's own OpenAPI document uses it."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

Schema = Mapping[str, Any]

_TIMES = st.datetimes().map(lambda moment: moment.isoformat() + "Z")
_QUANTITIES = st.sampled_from(("1", "8", "0", "1500m", "4Gi", "1e3", "-1", "0.5", "", "9" * 40))


def values(schema: Schema, components: Schema, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that the schema allows. Raises NotImplementedError for a keyword that is not known here."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return st.deferred(lambda: values(components[name], components, depth + 1))
    if "anyOf" in schema:
        return st.one_of([values(one, components, depth) for one in schema["anyOf"]])
    match schema.get("type"):
        case "object":
            return _objects(schema, components, depth)
        case "array":
            items = schema.get("items", {})
            return st.lists(values(items, components, depth + 1), min_size=schema.get("minItems", 0), max_size=3)
        case "string":
            return _TIMES if schema.get("format") == "date-time" else st.one_of(st.text(max_size=12), _QUANTITIES)
        case "integer":
            return st.one_of(st.integers(0, 9), st.integers())
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case None if not set(schema) - {"title", "description", "default"}:
            return anything
    raise NotImplementedError(f"a schema of this form is not known here: {schema}")


def _objects(schema: Schema, components: Schema, depth: int) -> st.SearchStrategy[Any]:
    known = {name: values(one, components, depth) for name, one in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    if not known:
        more = schema.get("additionalProperties", {})
        keys = st.one_of(st.sampled_from(("nvidia.com/gpu", "n1", "n2")), st.text(max_size=8))
        return st.dictionaries(keys, values(more if isinstance(more, Mapping) else {}, components, depth), max_size=3)
    return st.fixed_dictionaries(
        {name: one for name, one in known.items() if name in required},
        optional={name: one for name, one in known.items() if name not in required},
    )


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
"""Any JSON value."""
