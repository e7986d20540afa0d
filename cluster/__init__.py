"""Talking to Kubernetes: client, list-watch reflector, lease, eviction, node reservation writes."""
