"""Every name that users, charts and other programs rely on: keys, labels, annotations, the gate, API group."""

from typing import Final

GROUP: Final = "wholenode.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

CLAIM_KEY: Final = "wholenode.io/claim"
"""Taint on held nodes, label on released ones (value: claim UID), node selector key and scheduling gate."""

POLICY: Final = "wholenode.io/policy"
PATIENCE: Final = "wholenode.io/patience"
DEADLINE: Final = "wholenode.io/deadline"
EXPECTED_RUN: Final = "wholenode.io/expected-run"
LAST_CHECKPOINT: Final = "wholenode.io/last-checkpoint"
RESTART_COST: Final = "wholenode.io/restart-cost"
GANG: Final = "wholenode.io/gang"
GANG_SIZE: Final = "wholenode.io/gang-size"
TOPOLOGY_KEY: Final = "wholenode.io/topology-key"
"""On a waiting gang: key of the node label that must have one value on all its nodes."""

POKE: Final = "wholenode.io/poke"
"""Annotation on a gang's pod, changed only to make kube-scheduler try the pod again."""

DEFAULT_RESOURCE: Final = "nvidia.com/gpu"

KUEUE_POD_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_POD_GROUP_TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
IN_TREE_API: Final = "scheduling.k8s.io"
COSCHEDULING_API: Final = "scheduling.x-k8s.io"
VOLCANO_API: Final = "scheduling.volcano.sh"
"""The API groups of the three kinds that are all called PodGroup."""
COSCHEDULING_GROUP: Final = "scheduling.x-k8s.io/pod-group"
VOLCANO_GROUP: Final = "scheduling.k8s.io/group-name"
LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/group-index"
LWS_GROUP_KEY: Final = "leaderworkerset.sigs.k8s.io/group-key"
LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"
JOBSET_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
JOBSET_JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
JOBSET_GLOBAL_REPLICAS: Final = "jobset.sigs.k8s.io/global-replicas"
KUEUE_REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
"""Kueue's own way to say the same; counts where `TOPOLOGY_KEY` is absent."""
JOB_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
LABEL_KEY_PATTERN: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
"""What the key of a label looks like: a name, with or without a DNS prefix."""
LABEL_KEY_LENGTH: Final = 317

MIRROR_POD: Final = "kubernetes.io/config.mirror"
