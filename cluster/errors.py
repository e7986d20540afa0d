"""The errors of talking to Kubernetes, as a tree, and the one place that turns an API answer into one of them.

ClusterError
├── NotFound                  404: the object, or its kind, does not exist
├── AlreadyExists             409 with reason AlreadyExists: a create came second
├── Conflict                  409: the object changed since it was read, or has another UID
│   ├── HeldByAnother         the node carries the taint of another claim
│   └── NotHeld               the node does not carry our claim's taint any more
├── Forbidden                 401, 403: who we are, or what we may do, is not enough
├── NamespaceTerminating      403: the namespace is going away, nothing can be made in it
├── Invalid                   400, 413, 422: the server's own text says which field is wrong
├── Throttled                 429 of the API server itself: everybody has to slow down
├── DisruptionBudgetRefused   429 with cause DisruptionBudget: one pod's budget says no for now
├── SeveralBudgets            500 of an eviction: more than one PodDisruptionBudget matches, it never will work
├── Expired                   410: the resource version or continue token is too old
├── Unavailable               5xx, refused or cut connection, timeout: the outcome of a write is not known
└── LeaseLost                 this process does not lead any more and must not write
"""
# ruff: noqa: N818 (named after what happened, as the API server names it: `except Conflict` reads as the rule does)

import msgspec


class ClusterError(Exception):
    """Base of every error of this package; `str(error)` is one line for people."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotFound(ClusterError):
    """The object, or the kind itself, does not exist."""


class AlreadyExists(ClusterError):
    """An object of that name is there already."""


class Conflict(ClusterError):
    """The object is not what it was when it was read; read again and decide again."""


class HeldByAnother(Conflict):
    """Another claim's taint is on the node."""


class NotHeld(Conflict):
    """The taint of our claim, which a step relies on, is not on the node."""


class Forbidden(ClusterError):
    """Not allowed by RBAC or an admission webhook, or not authenticated."""


class NamespaceTerminating(ClusterError):
    """The namespace is being deleted."""


class Invalid(ClusterError):
    """The server refuses the content of the request."""


class Throttled(ClusterError):
    """The API server asks to slow down."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class DisruptionBudgetRefused(ClusterError):
    """A PodDisruptionBudget allows no eviction of this pod now."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class SeveralBudgets(ClusterError):
    """The pod matches more than one PodDisruptionBudget, which the Eviction API never accepts."""


class Expired(ClusterError):
    """The version asked for is no longer kept; list again."""


class Unavailable(ClusterError):
    """No usable answer: server error, connection error or timeout."""


class LeaseLost(ClusterError):
    """The lease could not be renewed in time, or another holder has it."""


class _Cause(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: int | None = None


class ServerStatus(msgspec.Struct):
    """The parts of a `metav1.Status` answer that decide."""

    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: _Details | None = None

    def has_cause(self, name: str) -> bool:
        return any(cause.reason == name for cause in (self.details.causes if self.details else None) or ())


_STATUS_DECODER = msgspec.json.Decoder(ServerStatus)
_BY_CODE: dict[int, type[ClusterError]] = {
    400: Invalid,
    401: Forbidden,
    404: NotFound,
    410: Expired,
    413: Invalid,
    422: Invalid,
}


_LONGEST_PAUSE_SECONDS = 30.0


def from_answer(code: int, body: bytes, *, what: str, retry_after: str | None = None) -> ClusterError:
    """The error for an answer that is not a success.

    `what` names the request for people (`PUT /api/v1/nodes/n1`), `retry_after` is the header of that name.
    """
    try:
        status = _STATUS_DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = ServerStatus(message=body[:200].decode(errors="replace").strip())
    return from_status(code, status, what=what, retry_after=retry_after)


def from_status(code: int, status: ServerStatus, *, what: str, retry_after: str | None = None) -> ClusterError:
    """As `from_answer`, for a Status that is already read (the ERROR event of a watch)."""
    message = f"{what}: {status.message or f'HTTP {code}'}"
    if code == 429:  # noqa: PLR2004
        seconds = _seconds(retry_after, status)
        if status.has_cause("DisruptionBudget"):
            return DisruptionBudgetRefused(message, seconds)
        return Throttled(message, seconds)
    if code == 409:  # noqa: PLR2004
        return AlreadyExists(message) if status.reason == "AlreadyExists" else Conflict(message)
    if code == 403:  # noqa: PLR2004
        return NamespaceTerminating(message) if status.has_cause("NamespaceTerminating") else Forbidden(message)
    if code >= 500:  # noqa: PLR2004
        several = "more than one PodDisruptionBudget" in (status.message or "")
        return SeveralBudgets(message) if several else Unavailable(message)
    return _BY_CODE.get(code, ClusterError)(message)


def _seconds(retry_after: str | None, status: ServerStatus) -> float:
    """As long as the server asks for, within reason: whoever sleeps for an hour sees nothing of the cluster for one."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        seconds = float(text)
    else:
        seconds = float((status.details.retry_after_seconds if status.details else None) or 0)
    return min(max(0.0, seconds), _LONGEST_PAUSE_SECONDS)
