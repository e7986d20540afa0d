"""What can be built: the pinned Go modules, the programs in them, and where the finished ones are cached."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from kwok.errors import LabError

MODULES = Path(__file__).parent / "modules"
KUBERNETES = "v1.37.2"
PLATFORMS = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class Module:
    """One Go module of ours that yields one binary, called by one or several names."""

    name: str
    package: str
    version: str
    ldflags: str
    programs: tuple[str, ...]
    expected_seconds: int
    """A cold build on two cores, for the progress display."""

    @property
    def directory(self) -> Path:
        """Where its go.mod is."""
        return MODULES / self.name

    def key(self) -> str:
        """Name the build by everything that decides its result: module files, package, flags, version, platform."""
        digest = hashlib.sha256()
        for name in ("go.mod", "go.sum", "main.go"):
            path = self.directory / name
            digest.update(name.encode() + b"\0" + (path.read_bytes() if path.exists() else b"") + b"\0")
        for text in (self.package, self.version, self.ldflags, platform_name()):
            digest.update(text.encode() + b"\0")
        return digest.hexdigest()[:16]


def _kubernetes_ldflags() -> str:
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    stamps = []
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        for field, value in (("gitVersion", KUBERNETES), ("gitMajor", major), ("gitMinor", minor)):
            stamps.append(f"-X {package}.{field}={value}")
    return " ".join(["-s -w", *stamps])


ALL_MODULES = (
    Module("etcd", "go.etcd.io/etcd/server/v3", "v3.7.3", "-s -w", ("etcd",), 43),
    Module("kwok", "sigs.k8s.io/kwok/cmd/kwok", "v0.8.0", "-s -w", ("kwok",), 77),
    Module(
        "kubernetes",
        ".",
        KUBERNETES,
        _kubernetes_ldflags(),
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
        360,
    ),
    Module("kueue", "sigs.k8s.io/kueue/cmd/kueue", "v0.17.0", "-s -w", ("kueue",), 165),
)
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
EVERYTHING = (*CONTROL_PLANE, "kueue")
NAMED_PATHS = {name: f"WHOLENODE_{name.upper().replace('-', '_')}" for name in EVERYTHING}


def platform_name() -> str:
    """Return Go's name of this platform. Raises LabError where the lab cannot run."""
    machine = PLATFORMS.get(platform.machine().lower())
    if platform.system() != "Linux" or machine is None:
        raise LabError(f"the lab runs on Linux (amd64, arm64), not on {platform.system()} {platform.machine()}")
    return f"linux/{machine}"


def module_of(program: str) -> Module:
    """Return the module that yields a program. Raises LabError if there is none."""
    for module in ALL_MODULES:
        if program in module.programs:
            return module
    raise LabError(f"unknown program {program!r}; known are {', '.join(EVERYTHING)}")


def cache_dir() -> Path:
    """Return where built things are kept: WHOLENODE_CACHE, else XDG_CACHE_HOME/wholenode, else ~/.cache/wholenode."""
    own = os.environ.get("WHOLENODE_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "wholenode"
