"""What can be set from outside, by environment variables with the prefix WHOLENODE_."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from controller.probes import Prober, check_template
from fleet.actions import Timing

Seconds = Annotated[float, Field(ge=0, le=86_400)]


class Settings(BaseSettings):
    """Settings of the controller; times in seconds."""

    model_config = SettingsConfigDict(env_prefix="WHOLENODE_", frozen=True)

    kubeconfig: str | None = None
    """Path of a kubeconfig; without it the pod's service account, else the default kubeconfig."""
    namespace: str = "wholenode-system"
    """Where the Lease is."""
    lease_name: str = "wholenode-controller"
    lease_seconds: Annotated[int, Field(ge=2, le=300)] = 15
    identity: str = ""
    """Name of this replica in the Lease; a random part is added, since a pod keeps its name when it restarts."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8081
    """Health and metrics."""
    write_qps: Annotated[float, Field(gt=0)] = 100.0
    write_burst: Annotated[int, Field(gt=0)] = 200
    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"

    settle_before_eviction_seconds: Seconds = 0.5
    settle_before_proof_seconds: Seconds = 2.0
    look_every_seconds: Annotated[float, Field(gt=0, le=60)] = 1.0
    drain_timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    landing_timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    retry_after_seconds: Seconds = 10.0
    avoid_for_seconds: Seconds = 600.0
    cool_down_seconds: Seconds = 1800.0
    cost_ceiling: Annotated[float, Field(ge=0)] = 1.0
    most_draining: Annotated[int, Field(ge=0)] = 0
    record_days: Annotated[int, Field(ge=0, le=36_500)] = 90
    """How long drain records are kept once they are resolved; 0 for ever."""
    claim_days: Annotated[int, Field(ge=0, le=36_500)] = 7
    """How long ended claims whose gang has no live pods are kept; 0 for ever."""

    node_probe_url: Annotated[str, AfterValidator(lambda url: url and check_template(url))] = ""
    """Where each node's own probe is asked whether its cards are free, as `http://{address}:9400/empty`; empty: not."""
    node_probe_timeout_seconds: Annotated[float, Field(gt=0, le=30)] = 2.0

    def prober(self) -> Prober | None:
        return Prober(self.node_probe_url, self.node_probe_timeout_seconds) if self.node_probe_url else None

    def timing(self) -> Timing:
        return Timing(
            probe_nodes=bool(self.node_probe_url),
            settle_before_eviction=timedelta(seconds=self.settle_before_eviction_seconds),
            settle_before_proof=timedelta(seconds=self.settle_before_proof_seconds),
            look_every=timedelta(seconds=self.look_every_seconds),
            drain_timeout=timedelta(seconds=self.drain_timeout_seconds),
            landing_timeout=timedelta(seconds=self.landing_timeout_seconds),
            retry_after=timedelta(seconds=self.retry_after_seconds),
            avoid_for=timedelta(seconds=self.avoid_for_seconds),
            cool_down=timedelta(seconds=self.cool_down_seconds),
            cost_ceiling=self.cost_ceiling,
            most_draining=self.most_draining,
        )
