"""The errors of the pure core, as a tree.

FleetError
├── QuantityError    a Kubernetes quantity that cannot be read, or is not whole where it must be
├── DurationError    a duration that is not written the Go way (`90s`, `10m`, `1h30m`)
├── TimeError        a time that is not RFC 3339 with a zone
├── AskError         a plan was asked for that there cannot be: no such pod, no such pool
└── WindowError      a cron schedule or a time zone that cannot be read
"""


class FleetError(ValueError):
    """Base of every error the pure core raises; the message says what is wrong and what to write instead."""


class QuantityError(FleetError):
    """A quantity such as `8`, `500m` or `64Gi` could not be read."""


class DurationError(FleetError):
    """A duration such as `90s` could not be read."""


class TimeError(FleetError):
    """A time such as `2027-03-31T00:00:00Z` could not be read."""


class AskError(FleetError):
    """A plan was asked for something that has none: no such pod or pool, a pod that waits for no whole node."""


class WindowError(FleetError):
    """A cron schedule such as `0 22 * * *`, or the name of a time zone, could not be read."""
