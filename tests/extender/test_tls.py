"""Real handshakes with files that are replaced: as kubelet does it, half-written, wrong, and of another authority."""

import asyncio
import contextlib
import datetime as dt
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from cryptography import x509

from cluster.program import StartError
from extender.tls import Files, RotatingContext
from fleet.resources import Accepts
from kwok.pki import Authority, Pair
from tests.extender.asgi import Rig, call
from tests.extender.server import Client, Served, post, serving, until
from tests.extender.test_app import by_name
from tests.fleet.builders import node, pool

QUESTION = by_name(["n1"])
LOOK_SECONDS = 0.02


class Mounted:
    """A Secret's volume: each version in a directory of its own, all files links through one link that is swapped."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.versions = 0
        root.mkdir()
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (root / name).symlink_to(f"..data/{name}")

    @property
    def files(self) -> Files:
        return Files(self.root / "tls.crt", self.root / "tls.key", self.root / "ca.crt")

    def put(self, certificate: bytes, key: bytes, client_ca: bytes) -> None:
        self.versions += 1
        version = self.root / f"..{self.versions}"
        version.mkdir()
        for name, content in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", client_ca)):
            (version / name).write_bytes(content)
        link = self.root / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self.root / "..data")


class Pki:
    """Two authorities; `client_of` makes a client that trusts both and shows a certificate of one."""

    def __init__(self, root: Path) -> None:
        self.first, self.second = Authority.create(root / "first"), Authority.create(root / "second")
        self.servers = 0

    def server(self, authority: Authority) -> Pair:
        self.servers += 1
        return authority.issue(f"server-{self.servers}", "server")

    def client_of(self, authority: Authority | None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        for one in (self.first, self.second):
            context.load_verify_locations(one.ca_file)
        if authority is not None:
            pair = authority.issue("scheduler", "scheduler")
            context.load_cert_chain(pair.certificate, pair.key)
        return context


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@pytest.fixture
def mounted(tmp_path: Path, pki: Pki) -> Mounted:
    volume = Mounted(tmp_path / "mounted")
    put(volume, pki.server(pki.first), pki.first)
    return volume


@pytest.fixture
def rig() -> Rig:
    return Rig(pool("small", accepts=Accepts.SMALL), node("n1", "small"))


def put(volume: Mounted, server: Pair, client_ca: Authority) -> None:
    volume.put(server.certificate.read_bytes(), server.key.read_bytes(), client_ca.ca_file.read_bytes())


def shown(client: Client) -> bytes:
    """The certificate that the server showed on this connection."""
    tls = client.writer.get_extra_info("ssl_object")
    found = tls.getpeercert(binary_form=True)
    assert isinstance(found, bytes)
    return found


def on_disk(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text(encoding="ascii"))


async def refused(served: Served, context: ssl.SSLContext) -> bool:
    """Whether the server will not speak to this client; in TLS 1.3 it says so after the client's handshake."""
    try:
        client = await served.connect(context)
        client.send(post("/v1/filter", b"{}"))
        return not await client.reader.read(1)
    except OSError:
        return True


@contextlib.asynccontextmanager
async def following(context: RotatingContext) -> AsyncIterator[None]:
    task = asyncio.create_task(context.follow(LOOK_SECONDS))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_o14_new_connections_get_the_new_certificate_and_open_ones_go_on(
    rig: Rig, mounted: Mounted, pki: Pki
) -> None:
    context = RotatingContext.of(mounted.files, rig.metrics)
    async with serving(rig, context) as served:
        scheduler = pki.client_of(pki.first)
        before = await served.connect(scheduler)
        old = on_disk(mounted.files.certificate)
        assert shown(before) == old
        await before.asks(QUESTION)
        put(mounted, pki.server(pki.first), pki.first)
        context.look()
        after = await served.connect(scheduler)
        assert shown(after) == on_disk(mounted.files.certificate) != old
        for client in (before, after, before):
            assert (await client.asks(QUESTION))["NodeNames"] == ["n1"]


async def test_o14_the_files_are_followed_by_themselves(rig: Rig, mounted: Mounted, pki: Pki) -> None:
    context = RotatingContext.of(mounted.files, rig.metrics)
    async with serving(rig, context) as served, following(context):
        put(mounted, pki.server(pki.second), pki.first)
        new = on_disk(mounted.files.certificate)
        await until(lambda: context._loaded.contents == mounted.files.read())
        assert shown(await served.connect(pki.client_of(pki.first))) == new


async def test_o14_a_new_client_authority_lets_its_clients_in_and_the_old_ones_out(
    rig: Rig, mounted: Mounted, pki: Pki
) -> None:
    context = RotatingContext.of(mounted.files, rig.metrics)
    old, new = pki.client_of(pki.first), pki.client_of(pki.second)
    async with serving(rig, context) as served:
        open_before = await served.connect(old)
        await open_before.asks(QUESTION)
        assert await refused(served, new)
        put(mounted, pki.server(pki.first), pki.second)
        context.look()
        assert (await served.asks_once(QUESTION, new))["NodeNames"] == ["n1"]
        assert await refused(served, old)
        assert await refused(served, pki.client_of(None))
        assert (await open_before.asks(QUESTION))["NodeNames"] == ["n1"]


async def test_o14_a_session_begun_under_the_old_client_authority_cannot_be_resumed(
    rig: Rig, mounted: Mounted, pki: Pki
) -> None:
    """Else the client's certificate would not be looked at again."""
    context = RotatingContext.of(mounted.files, rig.metrics)
    old = pki.client_of(pki.first)
    old.maximum_version = ssl.TLSVersion.TLSv1_2  # its sessions are known as soon as the handshake is over

    def session_of_a_call(port: int, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            old.wrap_socket(plain, server_hostname="localhost", session=session) as connection,
        ):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1000)
            return connection.session, connection.session_reused

    async with serving(rig, context) as served:
        session, _ = await asyncio.to_thread(session_of_a_call, served.port, None)
        assert (await asyncio.to_thread(session_of_a_call, served.port, session))[1]
        put(mounted, pki.server(pki.first), pki.second)
        context.look()
        with pytest.raises(OSError, match=r"(?i)unknown ca|reset|closed|EOF"):
            await asyncio.to_thread(session_of_a_call, served.port, session)


def cut(pki: Pki, old: tuple[bytes, ...], new: Pair) -> tuple[bytes, ...]:
    content = new.certificate.read_bytes()
    return content[: len(content) // 2], new.key.read_bytes(), old[2]


def half_a_key(pki: Pki, old: tuple[bytes, ...], new: Pair) -> tuple[bytes, ...]:
    content = new.key.read_bytes()
    return new.certificate.read_bytes(), content[: len(content) // 2], old[2]


def of_two_pairs(pki: Pki, old: tuple[bytes, ...], new: Pair) -> tuple[bytes, ...]:
    return new.certificate.read_bytes(), old[1], old[2]


def empty_authority(pki: Pki, old: tuple[bytes, ...], new: Pair) -> tuple[bytes, ...]:
    return new.certificate.read_bytes(), new.key.read_bytes(), b""


def not_an_authority(pki: Pki, old: tuple[bytes, ...], new: Pair) -> tuple[bytes, ...]:
    return new.certificate.read_bytes(), new.key.read_bytes(), b"\xff not PEM"


Spoil = Callable[[Pki, tuple[bytes, ...], Pair], tuple[bytes, ...]]


@pytest.mark.parametrize("spoil", [cut, half_a_key, of_two_pairs, empty_authority, not_an_authority])
async def test_o14_files_that_are_not_right_together_change_nothing_and_are_told_once(
    rig: Rig, mounted: Mounted, pki: Pki, spoil: Spoil, caplog: pytest.LogCaptureFixture
) -> None:
    context = RotatingContext.of(mounted.files, rig.metrics)
    old = on_disk(mounted.files.certificate)
    scheduler = pki.client_of(pki.first)
    async with serving(rig, context) as served:
        new = pki.server(pki.first)
        mounted.put(*spoil(pki, mounted.files.read(), new))
        for _ in range(3):
            context.look()
            client = await served.connect(scheduler)
            assert shown(client) == old
            assert (await client.asks(QUESTION))["NodeNames"] == ["n1"]
        assert await refused(served, pki.client_of(pki.second))
        errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert [record.getMessage() for record in errors] == ["the new TLS files cannot be used, the old ones stay"]
        assert errors[0].exc_info is None
        text = (await call(rig.app, "GET", "/metrics"))[1].decode()
        assert 'wholenode_certificate_loads_total{result="refused"} 1.0' in text
        put(mounted, new, pki.first)
        context.look()
        assert shown(await served.connect(scheduler)) == on_disk(new.certificate)


async def test_o14_a_swap_in_the_middle_of_a_look_is_taken_whole_at_the_next(
    rig: Rig, mounted: Mounted, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = RotatingContext.of(mounted.files, rig.metrics)
    first = mounted.files.read()
    put(mounted, pki.server(pki.first), pki.first)
    read = x509.load_pem_x509_certificate

    def swap_after_reading(data: bytes) -> x509.Certificate:
        monkeypatch.setattr(x509, "load_pem_x509_certificate", read)
        put(mounted, pki.server(pki.first), pki.second)
        return read(data)

    monkeypatch.setattr(x509, "load_pem_x509_certificate", swap_after_reading)
    context.look()
    assert context._loaded.contents == first
    context.look()
    assert context._loaded.contents == mounted.files.read() != first


async def test_o14_missing_files_change_nothing(rig: Rig, mounted: Mounted, pki: Pki) -> None:
    context = RotatingContext.of(mounted.files, rig.metrics)
    (mounted.root / "..data").unlink()
    context.look()
    async with serving(rig, context) as served:
        assert (await served.asks_once(QUESTION, pki.client_of(pki.first)))["NodeNames"] == ["n1"]


async def test_o11_the_end_of_the_certificate_is_a_metric(rig: Rig, mounted: Mounted, pki: Pki) -> None:
    context = RotatingContext.of(mounted.files, rig.metrics)
    put(mounted, pki.server(pki.first), pki.first)
    context.look()
    certificate = x509.load_pem_x509_certificate(mounted.files.certificate.read_bytes())
    text = (await call(rig.app, "GET", "/metrics"))[1].decode()
    [line] = [one for one in text.splitlines() if one.startswith("wholenode_certificate_ends_seconds ")]
    assert dt.datetime.fromtimestamp(float(line.split()[1]), dt.UTC) == certificate.not_valid_after_utc
    assert 'wholenode_certificate_loads_total{result="taken"} 2.0' in text


async def test_o14_a_certificate_the_reader_chokes_on_changes_nothing(rig: Rig, mounted: Mounted, pki: Pki) -> None:
    context = RotatingContext.of(mounted.files, rig.metrics)
    pair = pki.server(pki.first)
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())
    odd = ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09", 1))
    mounted.put(odd.encode(), pair.key.read_bytes(), pki.first.ca_file.read_bytes())
    before = context._loaded
    context.look()
    assert context._loaded is before
    with pytest.raises(StartError, match="cannot be used"):
        RotatingContext.of(mounted.files, rig.metrics)


def test_files_that_are_wrong_at_the_start_are_an_error_for_people(rig: Rig, tmp_path: Path, mounted: Mounted) -> None:
    (tmp_path / "other.key").write_text("no key")
    for files in (
        Files(tmp_path / "none.crt", mounted.files.key),
        Files(mounted.files.certificate, tmp_path / "other.key"),
    ):
        with pytest.raises(StartError, match="the TLS files cannot be used"):
            RotatingContext.of(files, rig.metrics)
