"""One control plane with wholenode, the controller behind a proxy, on which runs are played one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from signal import SIGKILL

from kwok.admin import Admin
from kwok.controlplane import ControlPlane
from kwok.errors import LabError
from kwok.faultproxy import Proxy, proxy
from kwok.faults import Fault, Kill, Trouble, Troubles
from kwok.history import record
from kwok.invariants import Invariants
from kwok.product import CONTROLLER, EXTENDER, Product
from kwok.soak.story import CARDS, UNTIL_END_SECONDS, Ending, Story
from kwok.soak.verdict import Harm, Problem, judge

_LOOK_EVERY_SECONDS = 0.1
SETTINGS = {
    "WHOLENODE_LEASE_SECONDS": "3",
    "WHOLENODE_RETRY_AFTER_SECONDS": "1",
    "WHOLENODE_AVOID_FOR_SECONDS": "2",
    "WHOLENODE_DRAIN_TIMEOUT_SECONDS": "30",
    "WHOLENODE_LANDING_TIMEOUT_SECONDS": "30",
}
"""Shorter waits where something is given up or taken over; the settling times, which keep nodes safe, are usual."""


@dataclass(frozen=True)
class Case:
    """What befalls one run: the controller is killed at a write, or writes meet troubles, or nothing happens.

    With Ending.GIVEN_UP the writes are counted from the moment on at which the gang was deleted.
    """

    scenario: str
    ending: Ending = Ending.LANDED
    kill_at: int | None = None
    stored: bool = True
    """Whether the write at which the controller is killed is stored."""
    troubles: Mapping[int, Trouble] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What came of one run. `reached`: whether what was to befall it did."""

    case: Case
    problems: tuple[Problem, ...]
    writes: Mapping[str, int]
    """The controller's requests that change something, by kind."""
    kill_points: int
    """Writes at which it could have been killed."""
    reached: bool
    starts: int
    """How often the controller was started again; more often than it was killed if it gave up by itself."""
    tally: Mapping[str, int]
    seconds: float


class Lane:
    """Plays runs, one at a time. Use `lane`."""

    def __init__(
        self, name: str, plane: ControlPlane, admin: Admin, product: Product, proxy: Proxy, keeper: Keeper
    ) -> None:
        self._name = name
        self._plane = plane
        self._admin = admin
        self._product = product
        self._proxy = proxy
        self._keeper = keeper
        self._runs = 0

    async def play(self, case: Case, until_end_seconds: float = UNTIL_END_SECONDS) -> Outcome:
        """One run, from new nodes to nodes as they were; it is lost if it has not come to its end in that time."""
        began = time.monotonic()
        self._runs += 1
        starts = self._keeper.starts
        gaps_allowed = Trouble.RESTART in case.troubles.values()
        async with record(self._admin, gaps_allowed=gaps_allowed) as history:
            story = Story(self._admin, history, f"{self._name}-{self._runs}", until_end_seconds)
            try:
                await story.prepare()
                await self._product.gate_active(self._admin, CARDS, story.name)
                self._proxy.begin()
                mishap = Mishap(case, self._plane, self._product, self._proxy)
                try:
                    problems = await self._through(case, story, mishap)
                finally:
                    await mishap.end()
                invariants = Invariants([story.pool])
                invariants.take(await history.catch_up())
                # What happened in a gap is not known in order.
                problems += [Problem(Harm.RULE, text) for text in invariants.violations if not history.gaps]
            finally:
                await story.clear()
        return Outcome(
            case=case,
            problems=tuple(problems),
            writes=Counter(str(call.kind) for call in self._proxy.calls),
            kill_points=len(self._proxy.writes()) - mishap.first,
            reached=mishap.reached,
            starts=self._keeper.starts - starts,
            tally=invariants.tally,
            seconds=time.monotonic() - began,
        )

    async def _through(self, case: Case, story: Story, mishap: Mishap) -> list[Problem]:
        async with story.raining():
            if case.ending is Ending.LANDED:
                mishap.arm(first=0)
            await story.submit()
            if case.ending is Ending.LANDED:
                come = await story.until_bound()
            else:
                come = await story.until_evicting()
                mishap.arm(first=len(self._proxy.writes()))
            bound, told = story.bound(), "" if come else story.told()
            await story.withdraw()
            over = await story.until_over()
        if not over:
            told = told or story.told()
        return judge(story, self._proxy.calls, bound if case.ending is Ending.LANDED else None, told)


@dataclass
class Mishap:
    """Arms the proxy with what is to befall one run, and puts right what must be put right meanwhile."""

    case: Case
    plane: ControlPlane
    product: Product
    proxy: Proxy
    first: int = 0
    """Writes before it was armed: they do not count."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _fault: Fault = field(default_factory=Fault)

    def arm(self, first: int) -> None:
        """From now on, `first` writes having passed."""
        self.first = first
        if self.case.kill_at is not None:
            self._fault = Kill(first + self.case.kill_at, self._kill, stored=self.case.stored)
        elif self.case.troubles:
            troubles = {first + number: trouble for number, trouble in self.case.troubles.items()}
            self._fault = Troubles(troubles, self.proxy.expire_watches, self._restart)
        self.proxy.fault = self._fault

    @property
    def reached(self) -> bool:
        """Whether what was to happen did."""
        if isinstance(self._fault, Kill):
            return self._fault.fired.is_set()
        return not isinstance(self._fault, Troubles) or len(self._fault.met) == len(self.case.troubles)

    async def end(self) -> None:
        """Disarm, and wait for what was begun."""
        self.proxy.fault = Fault()
        await asyncio.gather(*self._tasks)
        await self.proxy.carried_out()

    def _kill(self) -> None:
        if self.product.running(CONTROLLER):
            self.product.signal(CONTROLLER, SIGKILL)

    def _restart(self) -> None:
        self._tasks.append(asyncio.create_task(asyncio.to_thread(self.plane.restart_apiserver)))


@dataclass
class Keeper:
    """Starts controller and extender again whenever one has ended, as their Deployments would."""

    plane: ControlPlane
    product: Product
    starts: int = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            for name in (CONTROLLER, EXTENDER):
                if not self.product.running(name):
                    # While the API server restarts nobody gets a token.
                    with contextlib.suppress(LabError, OSError):
                        await asyncio.to_thread(self._start, name)

    def _start(self, name: str) -> None:
        self.plane.stop_component(name)
        self.product.launch(name)
        self.starts += name == CONTROLLER


@contextlib.asynccontextmanager
async def lane(name: str) -> AsyncIterator[Lane]:
    """A control plane of its own, ready for runs; it ends with the block."""
    async with ControlPlane() as plane, Admin(plane.kubeconfig) as admin:
        product = Product(plane, SETTINGS)
        await product.install(admin)
        async with proxy(product.kubeconfig(CONTROLLER)) as between:
            product.through[CONTROLLER] = between.url
            await product.start()
            keeper = Keeper(plane, product)
            keeping = asyncio.create_task(keeper.run())
            try:
                yield Lane(name, plane, admin, product, between, keeper)
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
                await asyncio.to_thread(product.stop)
