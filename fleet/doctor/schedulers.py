"""A KubeSchedulerConfiguration as far as it matters to us: its extenders, in the order they are asked, and profiles."""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec.structs import fields

from fleet.names import DEFAULT_RESOURCE

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
"""The only one that kube-scheduler has read since 1.29."""
KIND: Final = "KubeSchedulerConfiguration"
_DEPTH: Final = 5
"""From the document to a field of an entry of a list in an entry of a list."""
DEFAULT_NAME: Final = "default-scheduler"
DEFAULT_TIMEOUT: Final = "5s"
"""What kube-scheduler waits for an extender that says nothing of `httpTimeout`."""


class _Part(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


class TLS(_Part, frozen=True):
    insecure: bool = False
    ca_file: str = ""
    ca_data: str = ""

    @property
    def has_authority(self) -> bool:
        return bool(self.ca_file or self.ca_data)


class Managed(_Part, frozen=True):
    name: str
    ignored_by_scheduler: bool = False


class Extender(_Part, frozen=True):
    url_prefix: str = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    weight: int = 0
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls: TLS | None = msgspec.field(default=None, name="tlsConfig")
    http_timeout: str | None = msgspec.field(default=None, name="httpTimeout")
    node_cache_capable: bool = False
    managed_resources: tuple[Managed, ...] | None = None
    ignorable: bool = False

    @property
    def managed(self) -> frozenset[str]:
        return frozenset(one.name for one in self.managed_resources or ())

    @property
    def local(self) -> bool:
        """Whether it is asked over the loopback: nobody can stand between."""
        host = self.url_prefix.partition("://")[2]
        return host.startswith(("127.", "localhost", "[::1]"))

    @property
    def address(self) -> str:
        """Its address without a user's name and password."""
        scheme, mark, rest = self.url_prefix.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"

    @property
    def hami(self) -> bool:
        """Whether this is HAMi's: it binds, and has the cards, or parts of them, for itself."""
        return not self._named_ours and bool(self.bind_verb) and any(one.startswith(_CARDS) for one in self.managed)

    @property
    def ours(self) -> bool:
        """Whether this is wholenode's: by its address, else by what it is asked for (it filters and judges victims)."""
        return self._named_ours or (not self.hami and bool(self.filter_verb) and bool(self.preempt_verb))

    @property
    def _named_ours(self) -> bool:
        return "wholenode" in self.url_prefix


_CARDS: Final = DEFAULT_RESOURCE


class PluginConfig(_Part, frozen=True):
    name: str = ""
    args: dict[str, Any] | None = None


class Profile(_Part, frozen=True):
    scheduler_name: str = DEFAULT_NAME
    percentage_of_nodes_to_score: int | None = None
    plugin_config: tuple[PluginConfig, ...] | None = None

    def scoring(self) -> dict[str, Any]:
        """The scoring strategy of NodeResourcesFit; empty if the profile does not say, which means LeastAllocated."""
        for one in self.plugin_config or ():
            if one.name == "NodeResourcesFit":
                strategy = (one.args or {}).get("scoringStrategy")
                return strategy if isinstance(strategy, dict) else {}
        return {}


class Connection(_Part, frozen=True):
    """0 means the default, a negative `qps` no limit at all."""

    qps: float = 0.0
    burst: int = 0


class Document(_Part, frozen=True):
    """The fields of the file; what is left out has kube-scheduler's own default."""

    api_version: str = ""
    kind: str = ""
    profiles: tuple[Profile, ...] | None = None
    extenders: tuple[Extender, ...] | None = None
    pod_initial_backoff_seconds: int = 1
    pod_max_backoff_seconds: int = 10
    percentage_of_nodes_to_score: int | None = None
    client_connection: Connection = Connection()


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration and where it is from; `problem` says why it cannot be read."""

    source: str
    document: Document = field(default_factory=Document)
    problem: str = ""

    @property
    def shares_of_nodes(self) -> frozenset[int]:
        """`percentageOfNodesToScore` of the profiles; 0 where it is left to kube-scheduler. A profile's own wins."""
        every = self.document.percentage_of_nodes_to_score or 0
        own = (one.percentage_of_nodes_to_score for one in self.document.profiles or (Profile(),))
        return frozenset(every if one is None else one for one in own)

    @property
    def names(self) -> frozenset[str]:
        """The scheduler names it serves."""
        return frozenset(one.scheduler_name for one in self.document.profiles or (Profile(),))

    def extenders(self) -> tuple[Extender, ...]:
        """In the order in which they are asked: kube-scheduler moves those that may be ignored to the end."""
        every = self.document.extenders or ()
        return (*(one for one in every if not one.ignorable), *(one for one in every if one.ignorable))


def given(loaded: Any, depth: int = _DEPTH) -> Any:
    """Without what is null: Kubernetes takes that for left out. Not deeper than we read: YAML may refer to itself."""
    if isinstance(loaded, str):
        return loaded.encode(errors="replace").decode()  # YAML can write half a character, which nobody can show
    if depth and isinstance(loaded, dict):
        return {key: given(value, depth - 1) for key, value in loaded.items() if value is not None}
    return [given(one, depth - 1) for one in loaded] if depth and isinstance(loaded, list) else loaded


def read(source: str, loaded: object) -> Configuration | None:
    """The configuration in a loaded YAML document; None if it is something else. A broken one names its field."""
    if not isinstance(loaded, dict) or loaded.get("kind") != KIND:
        return None
    if loaded.get("apiVersion") != API_VERSION:
        return Configuration(source, problem=f"apiVersion: must be {API_VERSION}")
    known = {name: loaded[name] for one in fields(Document) if (name := one.encode_name) in loaded}
    try:
        return Configuration(source, msgspec.convert(given(known), Document))
    except msgspec.ValidationError as error:
        return Configuration(source, problem=" ".join(str(error).split()))
