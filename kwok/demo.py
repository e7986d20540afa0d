"""`make demo`: five 8-card jobs on a busy fleet of 50 x 8, first with the stock scheduler, then with wholenode."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kwok.admin import Admin, create_all
from kwok.controlplane import ControlPlane
from kwok.errors import LabError
from kwok.landings import PodWatch, Report, follow, report
from kwok.product import Product
from kwok.progress import Progress
from kwok.race import CLAIMS, prepare
from kwok.scene import BENEFICIARY, Scene
from kwok.screen import Picture, frame, holders, styled, table

_FRAME_SECONDS = 0.25
_PLAIN_FRAME_SECONDS = 2.0
_LAND_SECONDS = 60.0
_LONGEST_STOCK_SECONDS = 3600.0


class Show:
    """Draws frames: in place on a terminal, every two seconds as plain lines elsewhere."""

    def __init__(self, admin: Admin, watch: PodWatch, scene: Scene, console: Console) -> None:
        self._admin = admin
        self._watch = watch
        self._scene = scene
        self._console = console

    @contextlib.asynccontextmanager
    async def running(self, title: str, *, claims: bool) -> AsyncIterator[None]:
        """Show frames while the block runs, and one last frame at its end."""
        began = time.monotonic()
        live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        draw = self._drawer(live)

        async def once() -> None:
            nodes = await self._admin.list("/api/v1/nodes")
            found = await self._admin.list(CLAIMS) if claims else []
            pods = holders(self._watch)
            draw(Picture(title, nodes, pods, found, time.monotonic() - began))

        async def keep_drawing() -> None:
            while True:
                await once()
                await asyncio.sleep(_FRAME_SECONDS if live else _PLAIN_FRAME_SECONDS)

        with live or contextlib.nullcontext():
            task = asyncio.create_task(keep_drawing())
            try:
                yield
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await once()

    def _drawer(self, live: Live | None) -> Callable[[Picture], None]:
        def draw(picture: Picture) -> None:
            lines = frame(picture, self._scene)
            if live is not None:
                live.update(Text.from_markup(styled(lines)), refresh=True)
            else:
                self._console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
                self._console.print()

        return draw


async def demonstrate(scene: Scene, jobs: int, stock_seconds: float, console: Console) -> dict[str, object]:
    """Run the whole demonstration; the result is what `build/demo.json` holds."""
    progress = Progress()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    began = time.monotonic()
    async with ControlPlane(progress=progress) as plane, Admin(plane.kubeconfig) as admin:
        say(f"control plane up after {time.monotonic() - began:.1f} s: etcd, API server, controllers, scheduler, KWOK")
        async with follow(admin) as watch:
            await prepare(admin, watch, scene)
            show = Show(admin, watch, scene, console)
            say(f"{scene.nodes} nodes x {scene.cards} cards; {scene.busy_cards} cards busy with other teams' jobs\n")
            stock = await _stock(admin, watch, scene, jobs, stock_seconds, show)
            say(f"\nstock scheduler: {stock} of {jobs} jobs landed in {stock_seconds:.0f} s\n")
            product = Product(plane)
            await product.install(admin)
            for one in (*scene.pools(), *scene.agreements()):
                await admin.create(one)
            await product.start()
            await product.gate_active(admin, scene.cards, BENEFICIARY)
            say("wholenode is installed: extender, controller, pools; the teams' agreements are in force\n")
            found = await _ours(admin, watch, scene, jobs, show)
            product.stop()
    say("")
    for line in table(found):
        say(line)
    return {
        "requests": jobs,
        "landed": found.landed,
        "wrong_landings": len(found.wrong),
        "waits_s": found.waits_seconds,
        "victims": found.victims,
        "lost_gpu_seconds": found.lost_gpu_seconds,
        "stock_landed": stock,
    }


async def _stock(admin: Admin, watch: PodWatch, scene: Scene, jobs: int, seconds: float, show: Show) -> int:
    names = [f"stock-{index}" for index in range(jobs)]
    async with show.running(f"stock kube-scheduler, {jobs} jobs of {scene.cards} cards wait", claims=False):
        await create_all(admin, [scene.whole_node_job(name) for name in names])
        await asyncio.sleep(seconds)
    landed = sum(bool((seen := watch.of(BENEFICIARY, name)) and seen.node) for name in names)
    for name in names:
        await admin.delete(f"/api/v1/namespaces/{BENEFICIARY}/pods/{name}", grace_seconds=0)
    return landed


async def _ours(admin: Admin, watch: PodWatch, scene: Scene, jobs: int, show: Show) -> Report:
    submitted: dict[tuple[str, str], float] = {}
    async with show.running(f"wholenode, {jobs} jobs of {scene.cards} cards", claims=True):
        for index in range(jobs):
            name = f"big-{index}"
            submitted[(BENEFICIARY, name)] = time.monotonic()
            await admin.create(scene.whole_node_job(name))
        await watch.until(lambda: all((one := watch.of(*key)) and one.node for key in submitted), _LAND_SECONDS)
        await admin.wait_for_all(
            f"/apis/wholenode.io/v1alpha1/namespaces/{BENEFICIARY}/wholenodeclaims",
            lambda claims: all(one.get("status", {}).get("phase") == "Bound" for one in claims.values()),
            _LAND_SECONDS,
        )
    return report(watch, submitted, await admin.list(CLAIMS))


def main() -> int:
    """Exit code 0 if every job landed on a node vacated for it, 1 if not or if the lab failed (one line says why)."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--stock-seconds", type=float, default=20.0, help="how long the stock scheduler may try")
    parser.add_argument("--jobs", type=int, default=5, help="8-card jobs")
    parser.add_argument("--out", type=Path, default=Path("build/demo.json"), help="where the figures go")
    options = parser.parse_args()
    console = Console()
    if options.jobs < 1 or not 0 <= options.stock_seconds <= _LONGEST_STOCK_SECONDS:
        print("demo: --jobs must be at least 1, and --stock-seconds between 0 and 3600", file=sys.stderr)
        return 1
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.touch()
    except OSError as error:
        print(f"demo: cannot write {options.out} ({error.strerror}): name another file with --out", file=sys.stderr)
        return 1
    try:
        figures = asyncio.run(demonstrate(Scene(), options.jobs, options.stock_seconds, console))
    except (LabError, TimeoutError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130
    options.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    console.print(f"\nfigures: {options.out}", markup=False, highlight=False)
    return 0 if figures["landed"] == options.jobs and figures["wrong_landings"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
