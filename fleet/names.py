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

POKE: Final = "wholenode.io/poke"
"""Annotation on a gang's pod, changed only to make kube-scheduler try the pod again."""

DEFAULT_RESOURCE: Final = "nvidia.com/gpu"

KUEUE_POD_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_POD_GROUP_TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
JOB_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
MIRROR_POD: Final = "kubernetes.io/config.mirror"
