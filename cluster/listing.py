"""Consistent, paginated LIST of one kind into slim structs."""

import logging
from collections.abc import Iterator, Mapping
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from cluster.client import Api
from cluster.errors import Unavailable
from fleet.objects import Metadata

PAGE_SIZE: Final = 500
_LOG: Final = logging.getLogger("wholenode.listing")


class Described(Protocol):
    """Any slim struct of a Kubernetes object."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=Described)


class Bare(msgspec.Struct):
    """An object of which only the metadata can, or need, be read."""

    metadata: Metadata


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = "0"
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


_PAGE_DECODER = msgspec.json.Decoder(_Page)
_BARE_DECODER = msgspec.json.Decoder(Bare)


class ObjectDecoder(Generic[T]):
    """Decodes single objects; one that does not fit its type counts as absent and is logged, it stops nobody else."""

    def __init__(self, type_: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(type_)
        self._name = type_.__name__

    def decode(self, raw: msgspec.Raw | bytes) -> tuple[Metadata, T | None]:
        """Metadata, and the object or None if it does not fit the type.

        Raises msgspec.DecodeError if there is not even metadata.
        """
        try:
            item = self._decoder.decode(raw)
        except msgspec.ValidationError as error:
            metadata = _BARE_DECODER.decode(raw).metadata
            _LOG.warning(
                "an object is left out because it does not fit its schema",
                extra={"kind": self._name, "object": f"{metadata.namespace}/{metadata.name}", "reason": str(error)},
            )
            return metadata, None
        return item.metadata, item

    def items(self, raws: list[msgspec.Raw] | None) -> Iterator[T]:
        for raw in raws or ():
            if (item := self.decode(raw)[1]) is not None:
                yield item


async def list_all(
    api: Api, path: str, decoder: ObjectDecoder[T], query: Mapping[str, str] | None = None
) -> tuple[list[T], int]:
    """All objects as of one moment not before the call, and the resource version of that moment.

    Raises the client's errors, and Expired if the server forgot the moment while pages were still being read.
    """
    found: list[T] = []
    asked = {**(query or {}), "limit": str(PAGE_SIZE)}
    while True:
        try:
            page = _PAGE_DECODER.decode(await api.get(path, asked))
            found.extend(decoder.items(page.items))
        except msgspec.DecodeError as error:
            raise Unavailable(f"GET {path}: the answer is not a Kubernetes list ({error})") from error
        if not page.metadata.continue_:
            return found, int(page.metadata.resource_version)
        asked["continue"] = page.metadata.continue_
