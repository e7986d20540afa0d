"""Where the cluster is and who we are: kubeconfig or service account, loaded by the official client's own code."""

import os
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from cluster.errors import ClusterError


class CredentialsError(ClusterError):
    """No usable way to reach a cluster is configured; the message says what was tried."""


async def load(kubeconfig: str | None) -> tuple[Configuration, Any]:
    """The client configuration and, for a kubeconfig, the loader whose token may need refreshing (else None).

    Order: the given path, the pod's service account, then `$KUBECONFIG` or `~/.kube/config`. Raises CredentialsError.
    """
    configuration = Configuration()
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        try:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            raise CredentialsError(f"the pod's service account cannot be used: {error}") from error
        return configuration, None
    path = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    present = [part for part in path.split(os.pathsep) if Path(part).is_file()]  # noqa: ASYNC240 (once, at start)
    if not present:
        raise CredentialsError(
            f"no kubeconfig at {path}, and this is not a pod with a service account: "
            "name the file of one (--kubeconfig, KUBECONFIG, or WHOLENODE_KUBECONFIG for the two programs)"
        )
    try:
        loader = await load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, client_configuration=configuration, persist_config=False
        )
    except (AttributeError, TypeError) as error:
        raise CredentialsError(f"kubeconfig {path} cannot be used: it is not laid out like one") from error
    except (ConfigException, OSError, KeyError, ValueError, yaml.YAMLError) as error:
        raise CredentialsError(f"kubeconfig {path} cannot be used: {_one_line(error)}") from error
    return configuration, loader


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
