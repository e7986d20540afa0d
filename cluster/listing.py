"""Consistent, paginated LIST of one kind into slim structs."""

import logging
import sys
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


D = TypeVar("D")
_DEEPEST: Final = 25_000


def decoded(decoder: msgspec.json.Decoder[D], raw: msgspec.Raw | bytes) -> D:
    """What the decoder makes of it, however deep it is nested. Raises msgspec.DecodeError.

    The API server takes objects nested 10,000 levels deep where their schema leaves a part open, as the parameters of
    a ResourceClaim's driver; the interpreter's usual limit is a tenth of that, also for parts that nobody reads.
    """
    try:
        return decoder.decode(raw)
    except RecursionError:
        usual = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEEPEST)
    try:
        return decoder.decode(raw)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error
    finally:
        sys.setrecursionlimit(usual)


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
            item = decoded(self._decoder, raw)
        except msgspec.ValidationError as error:
            metadata = decoded(_BARE_DECODER, raw).metadata
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
            page = decoded(_PAGE_DECODER, await api.get(path, asked))
            found.extend(decoder.items(page.items))
        except msgspec.DecodeError as error:
            raise Unavailable(f"GET {path}: the answer is not a Kubernetes list ({error})") from error
        if not page.metadata.continue_:
            return found, int(page.metadata.resource_version)
        asked["continue"] = page.metadata.continue_
