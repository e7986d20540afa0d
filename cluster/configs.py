"""Configuration files of other programs, as text: which of them are kube-scheduler's or Kueue's, and what they say."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import yaml

from fleet.doctor.checkup import KueueConfiguration
from fleet.doctor.schedulers import KIND, Configuration, given, read

_KUEUE_GROUP: Final = "config.kueue.x-k8s.io/"
_CONFIG_MAP: Final = "ConfigMap"
_DECLARED: Final = re.compile(rf"""^[\s{{,"'-]*kind["']?\s*:\s*["']?{KIND}\b""", re.MULTILINE)
"""A text that says so itself; one that only talks about such a file, or a script that writes one, is none."""
_BROKEN: Final = (yaml.YAMLError, ValueError, RecursionError)
"""What PyYAML raises: its own errors, those of a date or number that is none, and of nesting without end."""


def scheduler_configs(source: str, text: str) -> tuple[Configuration, ...]:
    """Every KubeSchedulerConfiguration in the text, or in the ConfigMaps in it. One that is broken says why."""
    if KIND not in text:
        return ()
    try:
        documents = list(_documents(text))
    except _BROKEN as error:
        declared = _DECLARED.search(text) and not text.startswith("#!")
        return (Configuration(source, problem=f"this is no YAML: {_why(error)}"),) if declared else ()
    found = (read(source, one) for one in documents)
    return tuple(one for one in found if one is not None)


def kueue_config(text: str) -> KueueConfiguration | None:
    """Kueue's Configuration in the text, or in a ConfigMap in it; None if there is none that can be read."""
    if _KUEUE_GROUP not in text:
        return None
    try:
        for one in _documents(text):
            if str(one.get("apiVersion", "")).startswith(_KUEUE_GROUP) and one.get("kind") == "Configuration":
                return msgspec.convert(given({"resources": one.get("resources")}), KueueConfiguration)
    except (*_BROKEN, msgspec.ValidationError):
        return None
    return None


def _why(error: Exception) -> str:
    """What is wrong and where; never the text itself, for it may hold secrets."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        return f"{error.problem or error.context or 'it cannot be read'}{where}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a character, date or number in it cannot be read"


def _documents(text: str) -> Iterator[Mapping[str, Any]]:
    for one in yaml.safe_load_all(text):
        if not isinstance(one, dict):
            continue
        data = one.get("data")
        if one.get("kind") == _CONFIG_MAP and isinstance(data, dict):
            for value in data.values():
                yield from _documents(str(value))
        elif str(one.get("kind", "")).endswith("List") and isinstance(one.get("items"), list):
            yield from _documents(yaml.safe_dump_all(one["items"]))
        else:
            yield one
