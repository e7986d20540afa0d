"""Records of stopped pods, as short as the builders of other objects."""

from typing import Any

from fleet.objects import Metadata
from fleet.resources import DrainRecord, Outcome, RecordSpec, RecordStatus
from tests.fleet.builders import at


def record(
    pod: str,
    lost: float = 0.0,
    *,
    ns: str = "team-v",
    to: str = "team-b",
    of: str = "c",
    outcome: Outcome = Outcome.STOPPED,
    seconds: float = 0,
    agreement: str = "yes",
    **more: Any,
) -> DrainRecord:
    """What became of a pod that was to be stopped for the claim `of`, `seconds` after T0."""
    spec = RecordSpec(
        pod=pod,
        pod_uid=f"{ns}.{pod}",
        node="n1",
        cards=more.pop("cards", 1),
        at=at(seconds),
        claim=f"{to}/{of}",
        claim_uid=f"uid-{to}-{of}",
        beneficiary=to,
        agreement=agreement,
        lost_gpu_seconds=lost,
        **{"job": f"Pod/{ns}/{pod}", **more},
    )
    name = f"drain-{pod}-{of}-{seconds:.0f}"
    return DrainRecord(Metadata(name, ns, uid=f"record-{ns}-{name}"), spec, RecordStatus(outcome))
