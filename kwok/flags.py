"""Command lines of etcd, the Kubernetes programs and kwok for one cluster on one small machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kwok.errors import LabError
from kwok.pki import Pair
from kwok.stages import HEARTBEAT_MILLISECONDS

ISSUER = "https://kubernetes.default.svc.cluster.local"
CONTROLLERS = (
    "namespace-controller",
    "garbage-collector-controller",
    "job-controller",
    "ttl-after-finished-controller",
    "disruption-controller",
    "pod-garbage-collector-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "statefulset-controller",
    "replicaset-controller",
    "deployment-controller",
    "daemonset-controller",
    "clusterrole-aggregation-controller",
)
# TaintNodesByCondition stays on because node-lifecycle-controller runs: the plugin taints a new node as not ready and a
# cordoned one is tainted by the controller, which also takes both taints away. With only one of the two a fleet would
# never become schedulable, or a cordon would leave no taint.
DISABLED_ADMISSION = (
    "ServiceAccount",
    "DefaultStorageClass",
    "StorageObjectInUseProtection",
    "PersistentVolumeClaimResize",
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "ClusterTrustBundleAttest",
    "DefaultIngressClass",
    "PodSecurity",
    "LimitRanger",
    "RuntimeClass",
)
NODE_SELECTOR = "kwok.x-k8s.io/node=fake"


@dataclass(frozen=True)
class Keys:
    """The files that the API server and the controllers prove themselves with."""

    ca_file: Path
    server: Pair
    front_proxy: Pair
    service_accounts: Path


@dataclass(frozen=True)
class Ports:
    """The TCP ports of one cluster, all on 127.0.0.1."""

    etcd: int
    etcd_peer: int
    apiserver: int


def etcd(binary: Path, data: Path, ports: Ports) -> list[str]:
    """Without fsync: a test cluster's data need not survive the machine."""
    client, peer = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
    return [
        str(binary),
        "--name=lab",
        f"--data-dir={data / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=lab={peer}",
        "--quota-backend-bytes=2147483648",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=5m",
        "--log-level=warn",
    ]


def apiserver(binary: Path, keys: Keys, ports: Ports) -> list[str]:
    """Client certificates and service-account tokens, RBAC, no limit on requests in flight."""
    return [
        str(binary),
        f"--etcd-servers=http://127.0.0.1:{ports.etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.apiserver}",
        f"--tls-cert-file={keys.server.certificate}",
        f"--tls-private-key-file={keys.server.key}",
        f"--client-ca-file={keys.ca_file}",
        "--anonymous-auth=false",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={keys.service_accounts}",
        f"--service-account-signing-key-file={keys.service_accounts}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",
        f"--requestheader-client-ca-file={keys.ca_file}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={keys.front_proxy.certificate}",
        f"--proxy-client-key-file={keys.front_proxy.key}",
        f"--disable-admission-plugins={','.join(DISABLED_ADMISSION)}",
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=0",
        "--max-mutating-requests-inflight=0",
        "--event-ttl=15m",
        "--profiling=false",
    ]


def controller_manager(binary: Path, kubeconfig: Path, keys: Keys, port: int) -> list[str]:
    """Only the controllers that a fleet of pods and jobs needs, without their usual rate limit."""
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--leader-elect=false",
        "--use-service-account-credentials=false",
        f"--controllers={','.join(CONTROLLERS)}",
        "--kube-api-qps=5000",
        "--kube-api-burst=10000",
        "--concurrent-job-syncs=10",
        f"--node-monitor-grace-period={3 * HEARTBEAT_MILLISECONDS // 1000}s",
        "--node-monitor-period=5s",
        f"--root-ca-file={keys.ca_file}",
        f"--service-account-private-key-file={keys.service_accounts}",
    ]


def scheduler(binary: Path, config: Path, port: int) -> list[str]:
    """Everything else is in the configuration file, see `scheduler_config`."""
    return [str(binary), f"--config={config}", "--bind-address=127.0.0.1", f"--secure-port={port}"]


def kwok(binary: Path, config: Path, kubeconfig: Path, port: int) -> list[str]:
    """Plays the kubelets of the nodes that carry the annotation; stages come from the configuration file.

    Without node leases: with them KWOK passes over, for good, whatever happens on a node before its own watch has shown
    it the node's lease, though the node is Ready by then. A node is alive by the heartbeats of its status.
    """
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        f"--config={config}",
        f"--server-address=127.0.0.1:{port}",
        "--node-ip=10.88.0.1",
        "--cidr=10.64.0.0/12",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={NODE_SELECTOR}",
        "--node-lease-duration-seconds=0",
        "--v=WARN",
    ]


def scheduler_config(text: str | None, kubeconfig: Path) -> str:
    """Return a KubeSchedulerConfiguration: the user's (YAML) or the stock one, with what a lab needs filled in.

    The connection's kubeconfig and leader election are always ours; limits and back-off are ours unless given.
    Raises LabError if the text is not a KubeSchedulerConfiguration.
    """
    try:
        loaded: Any = yaml.safe_load(text) if text is not None else {}
    except yaml.YAMLError as error:
        raise LabError(f"the scheduler configuration is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(loaded, dict) or loaded.get("kind", "KubeSchedulerConfiguration") != (
        "KubeSchedulerConfiguration"
    ):
        raise LabError("the scheduler configuration is not a KubeSchedulerConfiguration")
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "parallelism": 4,
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
        **loaded,
    }
    limits = {"qps": 1000, "burst": 2000, "contentType": "application/vnd.kubernetes.protobuf"}
    config["clientConnection"] = {**limits, **config.get("clientConnection", {}), "kubeconfig": str(kubeconfig)}
    config["leaderElection"] = {"leaderElect": False}
    return yaml.safe_dump(config, sort_keys=False)
