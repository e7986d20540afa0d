"""Why a pod waits: one true answer, worked out from a view of the cluster and from what others told."""
