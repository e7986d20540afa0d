"""What can be set from outside, by environment variables with the prefix WHOLENODE_."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Settings of the extender."""

    model_config = SettingsConfigDict(env_prefix="WHOLENODE_", frozen=True)

    kubeconfig: str | None = None
    """Path of a kubeconfig; without it the pod's service account, else the default kubeconfig."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65_535)] = 8080
    health_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """A second, plain port for probes and metrics where the first speaks TLS; 0: none."""
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_client_ca_file: str | None = None
    """Authority of the scheduler's client certificate; with it nobody else is answered."""
    packing: Literal["filter", "scores"] = "filter"
    """Who packs small pods: filter lets only the fullest nodes through, or prioritize gives them more points."""
    max_body_bytes: Annotated[int, Field(ge=65_536)] = 16 * 1024 * 1024
    read_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How long a request may take to arrive."""
    leave_seconds: Annotated[float, Field(ge=0, le=60)] = 3.0
    """How long it goes on answering, not ready any more, when it is told to stop."""
    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"

    @model_validator(mode="after")
    def _complete(self) -> "Settings":
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("set both WHOLENODE_TLS_CERT_FILE and WHOLENODE_TLS_KEY_FILE, or neither")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("WHOLENODE_TLS_CLIENT_CA_FILE needs WHOLENODE_TLS_CERT_FILE and WHOLENODE_TLS_KEY_FILE")
        return self
