"""Four default settings that leave cards unused: what each costs, what the doctor says, and what its fix brings."""

from __future__ import annotations

from collections.abc import AsyncIterator

from kwok.bench.figures import Figures
from kwok.experiments import hamidefaults, kueuedefaults
from kwok.experiments.options import Options

JOBS = 5
WAIT_SECONDS = 150.0


async def measure(options: Options) -> AsyncIterator[Figures]:
    """Each setting by itself, before and after the doctor's fix; `gone` says whether its finding went with it."""
    size = hamidefaults.FULL
    if options.wanted("rate limit"):
        yield {"rate limit": told(options, "rate limit", await hamidefaults.rate_limit(size, options.say))}
    if options.wanted("spreading"):
        yield {"spreading": told(options, "spreading", await hamidefaults.spreading(size, options.say))}
    if options.wanted("quota in memory"):
        yield {"quota in memory": told(options, "quota in memory", await kueuedefaults.quota_unit(options.say))}
    if options.wanted("preemption"):
        found = await kueuedefaults.preemption(options.seed, JOBS, WAIT_SECONDS, options.say)
        yield {"preemption": told(options, "preemption", found)}


def told(options: Options, name: str, found: Figures) -> Figures:
    """Say in one line how it went; the figures as they were."""
    before, after = ", ".join(found["before"]["codes"]) or "nothing", ", ".join(found["after"]["codes"]) or "nothing"
    options.say(f"{name}: the doctor finds {before} before, {after} after: {'gone' if found['gone'] else 'NOT GONE'}")
    return found
