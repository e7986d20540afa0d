"""A small administrator's client for tests and experiments: raw objects over TLS, from a kubeconfig; no rate limit."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

Object = dict[str, Any]
OK_BELOW = 300
GOODBYE_SECONDS = 0.1
NOT_FOUND, CONFLICT, GONE = 404, 409, 410
PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
# Kinds with a plural that does not follow from the name, or that are not namespaced; the group is in apiVersion.
PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses", "Ingress": "ingresses"}
CLUSTER_SCOPED = frozenset(
    {
        "AdmissionCheck", "APIService", "ClusterQueue", "ClusterRole", "ClusterRoleBinding", "Cohort",
        "CustomResourceDefinition", "GPUPool", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration", "Namespace", "Node", "PersistentVolume", "PriorityClass", "ResourceFlavor",
        "StorageClass", "Topology", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration", "WorkloadPriorityClass",
    }
)  # fmt: skip


class APIError(Exception):
    """The API server's refusal: `status` is the HTTP status, `reason` e.g. NotFound, `body` the Status object."""

    def __init__(self, status: int, body: Any) -> None:
        body = body if isinstance(body, dict) else {"message": str(body)}
        super().__init__(f"{status} {body.get('reason', '')}: {body.get('message', '')}")
        self.status = status
        self.reason = str(body.get("reason", ""))
        self.body = body


def plural(kind: str) -> str:
    """Return the resource name of a kind, as in the API path."""
    if kind in PLURALS:
        return PLURALS[kind]
    name = kind.lower()
    if name.endswith(("s", "x", "ch")):
        return f"{name}es"
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}s"


def collection_path(api_version: str, resource: str, namespace: str | None = None) -> str:
    """Return e.g. `/apis/batch/v1/namespaces/a/jobs`; all namespaces or cluster-wide without a namespace."""
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    return f"{root}/{resource}" if namespace is None else f"{root}/namespaces/{namespace}/{resource}"


def path_of(manifest: Mapping[str, Any], *, collection: bool = False) -> str:
    """Return the path of an object (or of its collection); a namespaced one without a namespace is in `default`."""
    metadata, kind = manifest["metadata"], manifest["kind"]
    namespace = None if kind in CLUSTER_SCOPED else metadata.get("namespace", "default")
    path = collection_path(manifest["apiVersion"], plural(kind), namespace)
    return path if collection else f"{path}/{metadata['name']}"


def ssl_context(kubeconfig: Path) -> tuple[str, ssl.SSLContext, dict[str, str]]:
    """Return (server URL, TLS context, request headers) of a self-contained kubeconfig."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode("ascii")
    context = ssl.create_default_context(cadata=authority)
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile(prefix="wholenode-", suffix=".pem") as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]))
            pair.write(base64.b64decode(user["client-key-data"]))
            pair.flush()
            context.load_cert_chain(pair.name)
    return cluster["server"], context, headers


class Admin:
    """An API client for one event loop; use it with `async with Admin(kubeconfig) as admin`."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.server, self._context, self._headers = ssl_context(kubeconfig)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=64)
        self._session = aiohttp.ClientSession(
            self.server, connector=connector, headers=self._headers, timeout=aiohttp.ClientTimeout(total=None)
        )
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            # A TLS connection that was cut off in a watch says goodbye first, and nothing tells when it has; a loop
            # that ends before that leaves its socket to the garbage collector, which warns.
            await asyncio.sleep(GOODBYE_SECONDS)

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP session, open inside `async with`."""
        if self._session is None:
            raise RuntimeError("use the client inside `async with`")
        return self._session

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Any:
        """Send one request and return the decoded answer. Raises APIError for a refusal."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if data is not None else {}
        async with self.session.request(method, path, data=data, headers=headers, params=params) as response:
            text = await response.text()
            answer = json.loads(text) if response.content_type == "application/json" and text else text
            if response.status >= OK_BELOW:
                raise APIError(response.status, answer)
            return answer

    async def get(self, path: str) -> Object:
        """Read one object (or anything else) by path."""
        found: Object = await self.request("GET", path)
        return found

    async def list(self, path: str, **params: str) -> list[Object]:
        """Return the items of a collection, e.g. `list("/api/v1/pods", labelSelector="a=b")`; a consistent read."""
        found: list[Object] = (await self.request("GET", path, params=params))["items"]
        return found

    async def create(self, manifest: Mapping[str, Any]) -> Object:
        """Create an object where its kind and namespace say."""
        made: Object = await self.request("POST", path_of(manifest, collection=True), manifest)
        return made

    async def apply(self, manifest: Mapping[str, Any], manager: str = "wholenode-lab") -> Object:
        """Server-side apply, forced."""
        params = {"fieldManager": manager, "force": "true"}
        made: Object = await self.request(
            "PATCH", path_of(manifest), manifest, content_type=PATCH_TYPES["apply"], params=params
        )
        return made

    async def patch(self, path: str, body: Any, kind: str = "merge") -> Object:
        """Patch an object (or `<path>/status`); kind: merge, strategic, json."""
        changed: Object = await self.request("PATCH", path, body, content_type=PATCH_TYPES[kind])
        return changed

    async def delete(self, path: str, *, grace_seconds: int | None = None, missing_ok: bool = True) -> None:
        """Delete an object in the background; one that is gone is an error only without `missing_ok`."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            await self.request("DELETE", path, body)
        except APIError as error:
            if not (missing_ok and error.status == NOT_FOUND):
                raise

    async def evict(self, namespace: str, name: str) -> None:
        """Ask the Eviction API to remove a pod. Raises APIError 429 where a disruption budget forbids it."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        await self.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)

    async def watch(self, path: str, resource_version: str = "0", **params: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object) of a collection's changes until the server ends the watch; 0 starts with what is there.

        Raises APIError with status 410 when `resource_version` is too old.
        """
        query = {"watch": "1", "resourceVersion": resource_version, "allowWatchBookmarks": "true", **params}
        async with self.session.get(path, params=query) as response:
            if response.status >= OK_BELOW:
                raise APIError(response.status, await response.json())
            buffer = b""
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise APIError(int(event["object"].get("code", GONE)), event["object"])
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]

    async def wait_for(
        self, path: str, condition: Callable[[Object | None], bool], timeout_seconds: float = 60.0
    ) -> Object | None:
        """Wait by watch until `condition` holds for the object at `path` (None = it does not exist); return it.

        Raises TimeoutError naming the object's last state.
        """
        collection, name = path.rsplit("/", 1)

        def only_it(objects: Mapping[str, Object]) -> bool:
            return condition(objects.get(name))

        found = await self.wait_for_all(collection, only_it, timeout_seconds, fieldSelector=f"metadata.name={name}")
        return found.get(name)

    async def wait_for_all(
        self,
        path: str,
        condition: Callable[[Mapping[str, Object]], bool],
        timeout_seconds: float = 60.0,
        **params: str,
    ) -> dict[str, Object]:
        """Wait by watch until `condition` holds for a collection's objects, given by name; return them.

        Names must be unique in the collection asked for (one namespace). Raises TimeoutError with their last states.
        """
        objects: dict[str, Object] = {}
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    answer = await self.request("GET", path, params=params)
                    objects = {item["metadata"]["name"]: item for item in answer["items"]}
                    if condition(objects):
                        return objects
                    if await self._follow(path, answer["metadata"]["resourceVersion"], objects, condition, params):
                        return objects
        except TimeoutError:
            shown = {name: item.get("status", {}).get("phase") for name, item in list(objects.items())[:5]}
            raise TimeoutError(
                f"{path} {params or ''} not as wanted after {timeout_seconds} s; {len(objects)} there: {shown}"
            ) from None

    async def _follow(
        self,
        path: str,
        resource_version: str,
        objects: dict[str, Object],
        condition: Callable[[Mapping[str, Object]], bool],
        params: Mapping[str, str],
    ) -> bool:
        try:
            async for kind, item in self.watch(path, resource_version, **params):
                if kind == "DELETED":
                    objects.pop(item["metadata"]["name"], None)
                else:
                    objects[item["metadata"]["name"]] = item
                if condition(objects):
                    return True
        except APIError as error:
            if error.status != GONE:
                raise
        return False


async def create_all(
    admin: Admin, objects: Iterable[Mapping[str, Any]], rate_per_second: float | None = None, parallel: int = 32
) -> list[Object]:
    """Create objects and return them as created, in order; at a steady rate, or as fast as `parallel` requests go."""
    gate = asyncio.Semaphore(parallel)
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one(index: int, manifest: Mapping[str, Any]) -> Object:
        if rate_per_second is not None:
            await asyncio.sleep(max(0.0, began + index / rate_per_second - loop.time()))
        async with gate:
            return await admin.create(manifest)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(index, manifest)) for index, manifest in enumerate(objects)]
    return [task.result() for task in tasks]
