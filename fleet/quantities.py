"""Kubernetes quantities as integers: the one place that parses `8`, `500m`, `64Gi`, `1e3`."""

import re
from decimal import Decimal
from functools import lru_cache

from fleet.errors import QuantityError

_PATTERN = re.compile(
    r"([+-]?[0-9]{1,40}(?:\.[0-9]{0,40})?|[+-]?\.[0-9]{1,40})(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?"
)
_SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


@lru_cache(maxsize=4096)
def _decimal(text: str) -> Decimal:
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is not a Kubernetes quantity: write for example 8, 500m or 64Gi")
    number, suffix = match.group(1), match.group(2) or ""
    if suffix in _SUFFIXES:
        return Decimal(number) * _SUFFIXES[suffix]
    return Decimal(f"{number}{suffix}")


def count(quantity: str | int) -> int:
    """A quantity that counts things (cards, pods) as a whole number.

    Raises QuantityError if it cannot be read or is not whole: Kubernetes allows no half of an extended resource.
    """
    if isinstance(quantity, int):
        return quantity
    value = _decimal(quantity)
    if value != value.to_integral_value():
        raise QuantityError(f"{quantity!r} is not a whole number, and cards and pods cannot be split here")
    return int(value)


def amount(quantity: str | int) -> int:
    """A quantity in its base unit (bytes of memory), rounded up as Kubernetes does. Raises QuantityError."""
    return _ceiling(Decimal(quantity) if isinstance(quantity, int) else _decimal(quantity))


def milli(quantity: str | int) -> int:
    """A quantity in thousandths (milli-CPU), rounded up as Kubernetes does. Raises QuantityError."""
    return _ceiling((Decimal(quantity) if isinstance(quantity, int) else _decimal(quantity)) * 1000)


def _ceiling(value: Decimal) -> int:
    whole = int(value)
    return whole + 1 if value > whole else whole
