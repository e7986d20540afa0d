"""The plain manifests for `kubectl apply`: the chart with its default values, rendered by the real helm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click

from cli.generated import check_files, write_files
from kwok.catalogue import KUBERNETES
from kwok.errors import LabError
from kwok.helm import helm

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
CHART = DEPLOY / "chart"
NAMESPACE = "wholenode-system"
HEADER = f"""\
# Everything wholenode needs, for `kubectl apply --server-side`: the chart's default values, rendered by
# `python -m cli.manifests --write`; do not edit.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
"""


def render() -> dict[str, str]:
    """File name -> YAML text. Raises click.ClickException with helm's words if the chart cannot be rendered."""
    try:
        program = helm()
    except LabError as error:
        raise click.ClickException(str(error)) from error
    command = [
        str(program), "template", "wholenode", str(CHART),
        "--namespace", NAMESPACE, "--include-crds", "--kube-version", KUBERNETES,
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - helm, with our own chart
    if run.returncode != 0:
        raise click.ClickException(f"helm cannot render {CHART}: {run.stderr.strip()}")
    return {"wholenode.yaml": HEADER + run.stdout}


@click.command("manifests")
@click.option("--write", is_flag=True, help="Write deploy/manifests.")
@click.option("--check", is_flag=True, help="Fail if deploy/manifests is out of date.")
def manifests(*, write: bool, check: bool) -> None:
    """Print, write or check the plain manifests that stand beside the Helm chart."""
    files = render()
    if write:
        write_files(DEPLOY / "manifests", files)
    if check:
        check_files(DEPLOY / "manifests", files, "python -m cli.manifests --write")
    if not write and not check:
        click.echo("".join(files.values()), nl=False)


if __name__ == "__main__":
    manifests()
