"""A KubeSchedulerConfiguration as far as it matters to us: its extenders, in the order they are asked, and profiles."""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fleet.names import DEFAULT_RESOURCE

GROUP: Final = "kubescheduler.config.k8s.io/"
KIND: Final = "KubeSchedulerConfiguration"
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
    plugin_config: tuple[PluginConfig, ...] | None = None

    def scoring(self) -> dict[str, Any]:
        """The scoring strategy of NodeResourcesFit; empty if the profile does not say, which means LeastAllocated."""
        for one in self.plugin_config or ():
            if one.name == "NodeResourcesFit":
                strategy = (one.args or {}).get("scoringStrategy")
                return strategy if isinstance(strategy, dict) else {}
        return {}


class Connection(_Part, frozen=True):
    qps: float = 50.0
    burst: int = 100


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
    def names(self) -> frozenset[str]:
        """The scheduler names it serves."""
        return frozenset(one.scheduler_name for one in self.document.profiles or (Profile(),))

    def extenders(self) -> tuple[Extender, ...]:
        """In the order in which they are asked: kube-scheduler moves those that may be ignored to the end."""
        every = self.document.extenders or ()
        return (*(one for one in every if not one.ignorable), *(one for one in every if one.ignorable))


def read(source: str, loaded: object) -> Configuration | None:
    """The configuration in a loaded YAML document; None if it is something else. A broken one names its field."""
    if not isinstance(loaded, dict) or loaded.get("kind") != KIND:
        return None
    if not str(loaded.get("apiVersion", "")).startswith(GROUP):
        return Configuration(source, problem=f"apiVersion: must be {GROUP}v1")
    try:
        return Configuration(source, msgspec.convert(loaded, Document))
    except msgspec.ValidationError as error:
        return Configuration(source, problem=" ".join(str(error).split()))
