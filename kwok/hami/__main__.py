"""`python -m kwok.hami`: the stand-in of HAMi's scheduler extender as a process."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from pathlib import Path

from fleet.errors import FleetError
from fleet.times import parse_duration
from kwok.admin import Admin, Object
from kwok.hami.bucket import Bucket
from kwok.hami.calls import Calls, follow
from kwok.hami.extender import Extender, Policies
from kwok.hami.ledger import Ledger
from kwok.hami.locks import Locks
from kwok.hami.rules import BINPACK, SPREAD
from kwok.hami.server import application, serve

FILTER_SECONDS = 0.01
"""A real one copies all it knows for every question: 11 ms in the middle on 50 nodes. It decides how binds collide."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kwok.hami", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kubeconfig", type=Path, default=os.environ.get("KUBECONFIG"))
    parser.add_argument("--scheduler-name", default="hami-scheduler")
    parser.add_argument("--node-policy", choices=(BINPACK, SPREAD), default=BINPACK)
    parser.add_argument("--gpu-policy", default=SPREAD, help="binpack, spread, mutex or several with commas")
    parser.add_argument("--kube-qps", type=float, default=5.0, help="HAMi's own default: that of client-go")
    parser.add_argument("--kube-burst", type=int, default=10)
    parser.add_argument("--node-lock-timeout", default="5m")
    parser.add_argument("--node-lock-retry-timeout", default="28s", help="for members of pod groups only")
    parser.add_argument("--filter-seconds", type=float, default=FILTER_SECONDS, help="what a real one takes to look")
    parser.add_argument("--webhook-port", type=int, help="also answer here over TLS; needs --cert-file and --key-file")
    parser.add_argument("--cert-file", type=Path)
    parser.add_argument("--key-file", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the draw among equal nodes")
    options = parser.parse_args()
    if options.kubeconfig is None:
        parser.error("--kubeconfig or KUBECONFIG is needed")
    if options.webhook_port and not (options.cert_file and options.key_file):
        parser.error("--webhook-port needs --cert-file and --key-file")
    return options


async def run(options: argparse.Namespace) -> None:
    """Follow the cluster and answer until cancelled."""
    async with Admin(Path(options.kubeconfig)) as admin:
        calls = Calls(admin, Bucket(options.kube_qps, options.kube_burst))
        ledger = Ledger()
        expires, patience = (
            parse_duration(one) for one in (options.node_lock_timeout, options.node_lock_retry_timeout)
        )
        locks = Locks(calls, ledger, expires, patience)
        policies = Policies(options.node_policy, options.gpu_policy)
        extender = Extender(ledger, calls, locks, policies, random.Random(options.seed), options.filter_seconds)
        app = application(extender, ledger, calls, options.scheduler_name)
        await serve(app, options.port)
        if options.webhook_port:
            hooks = application(extender, ledger, calls, options.scheduler_name)
            await serve(hooks, options.webhook_port, (options.cert_file, options.key_file))
        await _follow(admin, ledger, extender)


async def _follow(admin: Admin, ledger: Ledger, extender: Extender) -> None:
    """Nodes first, then pods, as HAMi is synced once it has read every node's register."""
    missing = {"nodes", "pods"}

    def nodes(kind: str, node: Object) -> None:
        if kind == "DELETED":
            ledger.drop_node(node["metadata"]["name"])
        else:
            ledger.put_node(node)

    def pods(kind: str, pod: Object) -> None:
        {"ADDED": ledger.add_pod, "DELETED": ledger.drop_pod}.get(kind, ledger.change_pod)(pod)

    def listed(what: str) -> None:
        missing.discard(what)
        if not missing:
            extender.synced.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(follow(admin, "/api/v1/nodes", nodes, lambda: listed("nodes")))
        group.create_task(follow(admin, "/api/v1/pods", pods, lambda: listed("pods")))


def main() -> None:
    """Run until the process is ended; one line and exit code 1 for what a person can mend."""
    options = _options()
    try:
        asyncio.run(run(options))
    except (OSError, FleetError, ValueError) as error:
        sys.exit(f"kwok.hami: {error}")


if __name__ == "__main__":
    main()
