"""Drain records on the API server: written once, resolved once, deleted when they are old; never changed."""

import msgspec

from cluster.claims import collection_path, object_path, write_status
from cluster.client import Api
from cluster.errors import AlreadyExists, Conflict
from fleet.names import API_VERSION
from fleet.resources import DrainRecord, Outcome, RecordStatus


async def create_record(api: Api, record: DrainRecord) -> DrainRecord:
    """Write the record down; if that was done before, return it as it stands by now.

    Raises Conflict if something else has its name.
    """
    meta = record.metadata
    body = {
        "apiVersion": API_VERSION,
        "kind": DrainRecord.definition.kind,
        "metadata": {"name": meta.name, "namespace": meta.namespace},
        "spec": record.spec,
    }
    try:
        return _decoded(await api.create(collection_path(DrainRecord, meta.namespace), body))
    except AlreadyExists:
        found = _decoded(await api.get(object_path(record)))
    if found.spec != record.spec:
        raise Conflict(f"drainrecord {meta.namespace}/{meta.name} exists and says something else")
    return found


async def resolve_record(api: Api, record: DrainRecord, status: RecordStatus) -> DrainRecord:
    """Write what became of the pod. Raises Conflict if the record changed since it was read, NotFound if it is gone."""
    if record.status.outcome is not Outcome.PENDING:
        raise Conflict(f"drainrecord {record.metadata.namespace}/{record.metadata.name} is resolved already")
    return await write_status(api, record, status)


async def delete_record(api: Api, record: DrainRecord) -> None:
    """Delete exactly this record, by UID. Raises NotFound, and Conflict if only a namesake exists."""
    await api.delete(object_path(record), uid=record.metadata.uid)


def _decoded(answer: bytes) -> DrainRecord:
    return msgspec.json.decode(answer, type=DrainRecord)
