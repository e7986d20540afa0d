"""The scheduler's protocol as OpenAPI describes it: made from the very structs that read and write it."""

from typing import Any, Final

import msgspec
from msgspec import inspect

from extender.explaining import Failure
from extender.protocol import ExtenderArgs, ExtenderFilterResult, ExtenderPreemptionArgs, HostPriority, PreemptionResult
from fleet.why.explanations import Explanation

_TYPES: Final[dict[str, tuple[Any, Any]]] = {
    "filter": (ExtenderArgs, ExtenderFilterResult),
    "prioritize": (ExtenderArgs, list[HostPriority]),
    "preempt": (ExtenderPreemptionArgs, PreemptionResult),
}
"""What each verb is asked and what it answers."""
_ALL: Final = [*(one for pair in _TYPES.values() for one in pair), Explanation, Failure]
_SCHEMAS, _COMPONENTS = msgspec.json.schema_components(_ALL, ref_template="#/components/schemas/{name}")


def _mark_times(kind: inspect.Type, seen: set[type]) -> None:
    """Say of every time among the components that it is one: msgspec describes it as any text."""
    match kind:
        case inspect.StructType(cls=struct, fields=fields) if struct not in seen:
            seen.add(struct)
            for field in fields:
                options = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
                if any(isinstance(one, inspect.DateTimeType) for one in options):
                    schema = _COMPONENTS[struct.__name__]["properties"][field.encode_name]
                    for one in schema.get("anyOf", [schema]):
                        if one.get("type") == "string":
                            one["format"] = "date-time"
                _mark_times(field.type, seen)
        case inspect.UnionType(types=options):
            for one in options:
                _mark_times(one, seen)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            _mark_times(item, seen)
        case inspect.DictType(value_type=value):
            _mark_times(value, seen)
        case inspect.Metadata(type=inner):
            _mark_times(inner, seen)


_seen: Final[set[type]] = set()
for _kind in inspect.multi_type_info(_ALL):
    _mark_times(_kind, _seen)


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}


_TOO_SLOW: Final = _text("The question took too long to arrive.")
_TOO_LARGE: Final = _text("The question is larger than WHOLENODE_MAX_BODY_BYTES.")
_UNREADABLE: Final = _text("The question cannot be read.")

REQUESTS: Final[dict[str, dict[str, Any]]] = {
    verb: {"required": True, **_json(question)} for verb, question in zip(_TYPES, _SCHEMAS[:-2:2], strict=True)
}
"""The OpenAPI request body of each verb."""
RESPONSES: Final[dict[str, dict[int | str, dict[str, Any]]]] = {
    verb: {
        200: {"description": "The answer, also when it is no.", **_json(answer)},
        **({400: _UNREADABLE} if verb == "preempt" else {}),
        408: _TOO_SLOW,
        413: _TOO_LARGE,
    }
    for verb, answer in zip(_TYPES, _SCHEMAS[1:-2:2], strict=True)
}
"""The OpenAPI responses of each verb."""


_FAILURE: Final = _json(_SCHEMAS[-1])
EXPLAINED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Why the pod waits.", **_json(_SCHEMAS[-2])},
    400: {"description": "Not the names of a namespace and a pod.", **_FAILURE},
    404: {"description": "There is no such pod.", **_FAILURE},
    503: {"description": "The extender cannot tell yet.", **_FAILURE},
}
"""The OpenAPI responses of an explanation."""


def complete(openapi: dict[str, Any]) -> dict[str, Any]:
    """The document with the schemas that REQUESTS and RESPONSES name."""
    components = openapi.setdefault("components", {})
    components["schemas"] = {**_COMPONENTS, **components.get("schemas", {})}
    return openapi
