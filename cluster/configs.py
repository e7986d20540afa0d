"""Configuration files of other programs, as text: which of them are kube-scheduler's or Kueue's, and what they say."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import yaml

from fleet.doctor.checkup import KueueConfiguration
from fleet.doctor.schedulers import KIND, Configuration, read

_KUEUE_GROUP: Final = "config.kueue.x-k8s.io/"
_CONFIG_MAP: Final = "ConfigMap"


def scheduler_configs(source: str, text: str) -> tuple[Configuration, ...]:
    """Every KubeSchedulerConfiguration in the text, or in the ConfigMaps in it. One that is broken says why."""
    if KIND not in text:
        return ()
    try:
        documents = list(_documents(text))
    except yaml.YAMLError as error:
        return (Configuration(source, problem=f"this is no YAML: {' '.join(str(error).split())}"),)
    found = (read(source, one) for one in documents)
    return tuple(one for one in found if one is not None)


def kueue_config(text: str) -> KueueConfiguration | None:
    """Kueue's Configuration in the text, or in a ConfigMap in it; None if there is none that can be read."""
    if _KUEUE_GROUP not in text:
        return None
    try:
        for one in _documents(text):
            if str(one.get("apiVersion", "")).startswith(_KUEUE_GROUP) and one.get("kind") == "Configuration":
                return msgspec.convert(one, KueueConfiguration)
    except (yaml.YAMLError, msgspec.ValidationError):
        return None
    return None


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
