"""Our custom resources on a test's control plane."""

from pathlib import Path
from typing import Any

import yaml

from kwok.admin import Admin

_CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"


async def install_resources(admin: Admin) -> None:
    """Apply the CRDs of the chart and wait until they are served. Doing it again changes nothing."""
    for path in sorted(_CRDS.glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            await admin.apply(manifest)
            name = manifest["metadata"]["name"]
            await admin.wait_for(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", _established, 30)


def _established(crd: dict[str, Any] | None) -> bool:
    conditions = (crd or {}).get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
