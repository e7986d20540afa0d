"""`python -m extender` as a process: it starts, stops, and fails in one clear line."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kwok.controlplane import ControlPlane
from kwok.pki import Authority
from kwok.ports import pick

BASE = {
    **{key: value for key, value in os.environ.items() if not key.startswith(("WHOLENODE_", "KUBE"))},
    "WHOLENODE_LEAVE_SECONDS": "0",
}


def run(env: Mapping[str, str], seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "extender"],
        env={**BASE, **env},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The message of a failed start: the last line, and no traceback anywhere."""
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.fixture
def unreachable(tmp_path: Path) -> str:
    """A kubeconfig of an API server that nobody answers for."""
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
    )
    return str(config)


def test_a_port_in_use_is_named_with_the_setting_to_change(taken_port: int, unreachable: str) -> None:
    line = one_line(run({"WHOLENODE_PORT": str(taken_port), "WHOLENODE_KUBECONFIG": unreachable}))
    assert line.startswith(f"extender: cannot listen on 127.0.0.1:{taken_port}")
    assert "WHOLENODE_PORT" in line


def test_no_kubeconfig_is_said_with_what_was_tried(free_port: int, tmp_path: Path) -> None:
    line = one_line(run({"WHOLENODE_PORT": str(free_port), "HOME": str(tmp_path)}))
    assert "no kubeconfig at" in line
    assert "WHOLENODE_KUBECONFIG" in line


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"WHOLENODE_PORT": "many"}, "WHOLENODE_PORT"),
        ({"WHOLENODE_LOG_LEVEL": "LOUD"}, "WHOLENODE_LOG_LEVEL"),
        ({"WHOLENODE_PACKING": "both"}, "WHOLENODE_PACKING"),
        ({"WHOLENODE_READ_SECONDS": "0"}, "WHOLENODE_READ_SECONDS"),
        ({"WHOLENODE_LEAVE_SECONDS": "-1"}, "WHOLENODE_LEAVE_SECONDS"),
        ({"WHOLENODE_TLS_CERT_FILE": "x.crt"}, "WHOLENODE_TLS_KEY_FILE"),
        ({"WHOLENODE_TLS_CLIENT_CA_FILE": "ca.crt"}, "WHOLENODE_TLS_CERT_FILE"),
    ],
)
def test_a_wrong_setting_is_named(env: dict[str, str], expected: str) -> None:
    assert expected in one_line(run(env))


def test_tls_files_that_cannot_be_read_are_said(free_port: int, control_plane: ControlPlane, tmp_path: Path) -> None:
    env = {
        "WHOLENODE_PORT": str(free_port),
        "WHOLENODE_KUBECONFIG": str(control_plane.kubeconfig),
        "WHOLENODE_TLS_CERT_FILE": str(tmp_path / "no.crt"),
        "WHOLENODE_TLS_KEY_FILE": str(tmp_path / "no.key"),
    }
    assert "TLS files" in one_line(run(env))


def test_an_api_server_that_refuses_ends_the_process_with_its_own_words(
    control_plane: ControlPlane, free_port: int
) -> None:
    nobody = control_plane.kubeconfig_for_user("nobody-in-particular")
    line = one_line(run({"WHOLENODE_PORT": str(free_port), "WHOLENODE_KUBECONFIG": str(nobody)}))
    assert line.startswith("extender: ")
    assert "nobody-in-particular" in line
    assert "cannot list resource" in line


def start(env: Mapping[str, str], port: int) -> subprocess.Popen[str]:
    """Start it and wait until it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "extender"], env={**BASE, **env}, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
    _, errors = process.communicate()
    raise AssertionError(f"it ended with {process.returncode}: {errors}")


def stop(process: subprocess.Popen[str]) -> None:
    """SIGTERM ends it cleanly."""
    process.send_signal(signal.SIGTERM)
    try:
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_sigterm_while_the_api_server_cannot_be_reached_ends_it_cleanly(free_port: int, unreachable: str) -> None:
    stop(start({"WHOLENODE_PORT": str(free_port), "WHOLENODE_KUBECONFIG": unreachable}, free_port))


def status_of(url: str, context: ssl.SSLContext | None = None) -> int:
    try:
        with urllib.request.urlopen(url, context=context, timeout=10) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def certificate_of(port: int, context: ssl.SSLContext) -> bytes | None:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return connection.getpeercert(binary_form=True)


def test_o04_o14_without_the_schedulers_certificate_nobody_is_answered_but_probes_are_plain(
    free_port: int, unreachable: str, tmp_path: Path
) -> None:
    ours = Authority.create(tmp_path / "ours")
    strangers = Authority.create(tmp_path / "strangers")
    server, client, other = ours.issue("server", "server"), ours.issue("client", "scheduler"), strangers.issue("c", "c")
    health_port = pick({free_port})
    env = {
        "WHOLENODE_PORT": str(free_port),
        "WHOLENODE_HEALTH_PORT": str(health_port),
        "WHOLENODE_KUBECONFIG": unreachable,
        "WHOLENODE_TLS_CERT_FILE": str(server.certificate),
        "WHOLENODE_TLS_KEY_FILE": str(server.key),
        "WHOLENODE_TLS_CLIENT_CA_FILE": str(ours.ca_file),
    }
    process = start(env, free_port)
    try:
        url = f"https://localhost:{free_port}/readyz"
        known = ssl.create_default_context(cafile=str(ours.ca_file))
        known.load_cert_chain(client.certificate, client.key)
        assert status_of(url, known) == 503
        renewed = ours.issue("server", "server")  # written over the files that are in use
        shown = ssl.PEM_cert_to_DER_cert(renewed.certificate.read_text(encoding="ascii"))
        while certificate_of(free_port, known) != shown:
            assert process.poll() is None
            time.sleep(0.05)
        for pair in (None, other):
            context = ssl.create_default_context(cafile=str(ours.ca_file))
            if pair is not None:
                context.load_cert_chain(pair.certificate, pair.key)
            with pytest.raises(OSError, match=r"(?i)certificate required|unknown ca|reset|closed|EOF"):
                status_of(url, context)
        assert status_of(f"http://127.0.0.1:{health_port}/healthz") == 200
        assert status_of(f"http://127.0.0.1:{health_port}/metrics") == 200
        assert status_of(f"http://127.0.0.1:{health_port}/filter") == 404
    finally:
        stop(process)
