"""Writing our own custom resources: claims are made and deleted, the status of every kind is written."""

from collections.abc import Mapping
from typing import Any, TypeVar, overload

import msgspec

from cluster.client import Api
from fleet.names import API_VERSION, GROUP, VERSION
from fleet.resources import (
    AgreementStatus,
    ClaimSpec,
    ClaimStatus,
    DrainAgreement,
    DrainRecord,
    GPUPool,
    PoolStatus,
    RecordStatus,
    WholeNodeClaim,
)

R = TypeVar("R", GPUPool, DrainAgreement, WholeNodeClaim, DrainRecord)


def collection_path(
    type_: type[GPUPool] | type[DrainAgreement] | type[WholeNodeClaim] | type[DrainRecord], namespace: str = ""
) -> str:
    """Where objects of one of our kinds are: of all namespaces, or of one."""
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{within}/{type_.definition.plural}"


def object_path(item: GPUPool | DrainAgreement | WholeNodeClaim | DrainRecord) -> str:
    return f"{collection_path(type(item), item.metadata.namespace)}/{item.metadata.name}"


async def create_claim(
    api: Api, namespace: str, name: str, spec: ClaimSpec, labels: Mapping[str, str] | None = None
) -> WholeNodeClaim:
    """Make a claim. The name should follow from the gang, so that making it twice is AlreadyExists, not two claims."""
    body = {
        "apiVersion": API_VERSION,
        "kind": WholeNodeClaim.definition.kind,
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": spec,
    }
    answer = await api.create(collection_path(WholeNodeClaim, namespace), body)
    return msgspec.json.decode(answer, type=WholeNodeClaim)


async def delete_claim(api: Api, claim: WholeNodeClaim) -> None:
    """Delete exactly this claim, by UID. Raises NotFound, and Conflict if only a namesake exists."""
    await api.delete(object_path(claim), uid=claim.metadata.uid)


@overload
async def write_status(api: Api, item: WholeNodeClaim, status: ClaimStatus) -> WholeNodeClaim: ...
@overload
async def write_status(api: Api, item: GPUPool, status: PoolStatus) -> GPUPool: ...
@overload
async def write_status(api: Api, item: DrainAgreement, status: AgreementStatus) -> DrainAgreement: ...
@overload
async def write_status(api: Api, item: DrainRecord, status: RecordStatus) -> DrainRecord: ...
async def write_status(api: Api, item: R, status: ClaimStatus | PoolStatus | AgreementStatus | RecordStatus) -> R:
    """Replace the status of the object as it was read; times keep their microseconds.

    Raises Conflict if the object changed since it was read, NotFound if it is gone.
    """
    metadata = item.metadata
    identity: dict[str, Any] = {
        "name": metadata.name,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
    }
    if metadata.namespace:
        identity["namespace"] = metadata.namespace
    body = {
        "apiVersion": API_VERSION,
        "kind": item.definition.kind,
        "metadata": identity,
        "spec": item.spec,
        "status": status,
    }
    answer = await api.replace(f"{object_path(item)}/status", body)
    return msgspec.json.decode(answer, type=type(item))
