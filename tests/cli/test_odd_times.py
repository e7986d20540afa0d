"""Times at the ends of the calendar, typed or in a file, are refused in one line."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Saved, run
from tests.cli.test_ledger import TWO_TEAMS
from tests.cli.test_plan import fleet

ENDS = ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]


@pytest.mark.parametrize("output", ["table", "json", "csv"])
@pytest.mark.parametrize("since", ENDS)
def test_since_a_time_that_no_clock_shows(saved: Saved, output: str, since: str) -> None:
    done = run("ledger", "--since", since, "--from", saved(TWO_TEAMS), "-o", output)
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("taken", [*ENDS, "0001-01-01T00:00:00Z"])
@pytest.mark.parametrize(
    "command", [("doctor",), ("ledger", "--since", "1h"), ("claims",), ("plan", "-n", "team-b", "--nodes", "1")]
)
def test_a_picture_of_such_a_time(saved: Saved, command: tuple[str, ...], taken: str) -> None:
    file = Path(saved(fleet()))
    file.write_text(re.sub(r'"takenAt":"[^"]*"', f'"takenAt":"{taken}"', file.read_text(), count=1))
    done = run(*command, "--from", str(file))
    assert done.exit_code in {1, 2}
    assert isinstance(done.exception, SystemExit)
    assert "takenAt" in done.output
