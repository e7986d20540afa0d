"""The test fleet: a real control plane as plain processes, KWOK nodes, workloads, experiments."""
