"""`wholenode why`: why a pod waits, from the extender or straight from the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from cli.pods import which

SERVICE: Final = "wholenode-system/wholenode-extender"
NOT_FOUND, FORBIDDEN, UNREACHABLE = 3, 4, 5
_OURS: Final = "wholenode: "
_SECONDS: Final = 30.0
T = TypeVar("T")


@click.command()
@click.argument("pod")
@click.option("-n", "--namespace", help="The pod's namespace, if POD is a name alone or pod/NAME.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--direct", is_flag=True, help="Read the cluster with your own rights instead of asking the extender.")
@click.option("--url", help="Ask the extender at this address (http://HOST:PORT), not through the API server.")
@click.option("--service", default=SERVICE, show_default=True, help="NAMESPACE/NAME of the extender's Service.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Else $KUBECONFIG or ~/.kube/config.")
def why(
    pod: str,
    namespace: str | None,
    output: str,
    direct: bool,
    url: str | None,
    service: str,
    kubeconfig: Path | None,
) -> None:
    """Say why POD waits: NAMESPACE/POD, or with -n a name or pod/NAME.

    Exit codes: 0 explained, 2 wrong usage, 3 no such pod, 4 not allowed, 5 the extender or the cluster does not answer.
    """
    import msgspec

    from cli.why_text import told
    from fleet.why.explanations import Explanation

    where, name = which(pod, namespace)
    if direct and url:
        raise click.UsageError("say --direct or --url, not both")
    if url and not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url {url}: write http://HOST:PORT")
    path = str(kubeconfig) if kubeconfig is not None else None
    if url:
        body = _run(_from_url(url, where, name))
    elif direct:
        body = _run(_direct(path, where, name))
    else:
        body = _run(_through_service(path, service, where, name))
    try:
        answer = msgspec.json.decode(body, type=Explanation)
        if output == "json":
            click.echo(msgspec.json.format(body, indent=2))
            return
    except msgspec.DecodeError:
        _fail("the answer is not an explanation: is that address an extender of this version?", UNREACHABLE)
    click.echo(told(answer, datetime.now(UTC)))


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"why: {' '.join(text.split())}", err=True)
    raise click.exceptions.Exit(code)


def _run(asking: Coroutine[Any, Any, T]) -> T:
    """Run it; every error of the cluster ends the program with one line."""
    from cluster.errors import ClusterError

    async def bounded() -> T:
        async with asyncio.timeout(_SECONDS):
            return await asking

    try:
        return asyncio.run(bounded())
    except TimeoutError:
        _fail(f"no answer within {_SECONDS:.0f} s", UNREACHABLE)
    except ClusterError as error:
        _fail(error.message, UNREACHABLE)


async def _from_url(url: str, namespace: str, name: str) -> bytes:
    import aiohttp

    address = f"{url.rstrip('/')}/v1/explain/{namespace}/{name}"
    try:
        async with aiohttp.ClientSession() as session, session.get(address) as response:
            body = await response.read()
            if response.status != 200:  # noqa: PLR2004
                _refused(response.status, body, address)
            return body
    except (aiohttp.ClientError, ValueError) as error:
        hint = "see that an extender listens there, or use --direct"
        _fail(f"the extender at {url} cannot be asked ({error or type(error).__name__}): {hint}", UNREACHABLE)


def _refused(status: int, body: bytes, address: str) -> NoReturn:
    from cluster.errors import NotFound, from_answer

    error = from_answer(status, body, what=f"GET {address}")
    if isinstance(error, NotFound) and _OURS in error.message:
        _fail(error.message.rpartition(_OURS)[2], NOT_FOUND)
    _fail(f"{error.message}: is that address an extender?" if isinstance(error, NotFound) else error.message, 5)


async def _through_service(kubeconfig: str | None, service: str, namespace: str, name: str) -> bytes:
    """Ask by the API server's service proxy: the caller needs no network path to the extender."""
    from cluster.client import connect
    from cluster.errors import Forbidden, NotFound, Unavailable

    owner, _, service_name = service.partition("/")
    if not owner or not service_name or "/" in service_name:
        raise click.UsageError(f"--service {service!r}: write NAMESPACE/NAME")
    async with connect(kubeconfig) as api:
        errors = []
        for port in ("http", "health"):  # plain, or the plain port beside TLS
            path = f"/api/v1/namespaces/{owner}/services/{service_name}:{port}/proxy/v1/explain/{namespace}/{name}"
            try:
                return await api.get(path)
            except NotFound as error:
                if _OURS in error.message:
                    _fail(error.message.rpartition(_OURS)[2], NOT_FOUND)
                errors.append(error.message)
                break
            except Forbidden as error:
                role = f"the Role wholenode-explain (get services/proxy) in namespace {owner}"
                _fail(f"{error.message}. Ask an administrator for {role}, or use --direct or --url", FORBIDDEN)
            except Unavailable as error:
                if _OURS in error.message:
                    _fail(error.message.rpartition(_OURS)[2], UNREACHABLE)
                errors.append(error.message)
    hint = "see that it is installed and ready, name it by --service, or use --direct"
    _fail(f"the extender cannot be asked through Service {service} ({errors[0]}): {hint}", UNREACHABLE)


async def _direct(kubeconfig: str | None, namespace: str, name: str) -> bytes:
    """Explain here, from LISTs of the whole cluster."""
    from dataclasses import replace

    import msgspec

    from cluster.client import connect
    from cluster.errors import Forbidden, NotFound
    from cluster.facts import pod_facts, whole_view
    from fleet.why.explain import explain

    async with connect(kubeconfig) as api:
        try:
            facts = await pod_facts(api, namespace, name)
        except NotFound:
            _fail(f"there is no pod {namespace}/{name} on {api.server}", NOT_FOUND)
        except Forbidden as error:
            _fail(f"{error.message}. You may not read that pod: ask whoever rules the namespace", FORBIDDEN)
        try:
            view = await whole_view(api)
        except BaseExceptionGroup as errors:
            first = _first(errors)
            if isinstance(first, Forbidden):
                hint = "--direct lists nodes, pods and wholenode's kinds everywhere; without it the extender does"
                _fail(f"{first.message}. {hint}", FORBIDDEN)
            if isinstance(first, NotFound):
                _fail(f"{first.message}. wholenode's kinds are not served: is it installed?", UNREACHABLE)
            raise first from errors
        view = replace(view, pod_groups=(*view.pod_groups, *facts.groups))
        return msgspec.json.encode(explain(view, facts.pod, facts.told, datetime.now(UTC)))


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
