"""The CustomResourceDefinitions, generated from the typed resources, and the command that writes or checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from cli.generated import check_files, write_files
from cli.schema import object_schema
from fleet.names import GROUP, VERSION
from fleet.resources import KINDS, Column

HEADER = "# The {kind} resource. Generated from fleet/resources.py by `wholenode crds`; do not edit.\n"


def crd(kind_struct: type[Any]) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind of `fleet.resources.KINDS`.

    Spec fields carry the struct's defaults, status fields none: status is what was observed, never assumed.
    """
    definition = kind_struct.definition
    schema = object_schema(kind_struct, defaults=False)
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    for field in msgspec.structs.fields(kind_struct):
        if field.name != "metadata":
            properties[field.name] = object_schema(field.type, defaults=field.name == "spec")
    schema["properties"] = properties
    schema["required"] = [name for name in schema["required"] if name != "metadata"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{definition.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "wholenode", "app.kubernetes.io/part-of": "wholenode"},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "singular": definition.singular,
                "shortNames": [definition.short],
                "categories": ["wholenode"],
            },
            "scope": "Namespaced" if definition.namespaced else "Cluster",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "additionalPrinterColumns": [_column(column) for column in kind_struct.columns],
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def _column(column: Column) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    if column.priority:
        shown["priority"] = column.priority
    return shown


class _PlainDumper(yaml.SafeDumper):
    """Writes shared parts out in full: anchors in a manifest help nobody."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def render_all() -> dict[str, str]:
    """File name -> YAML text of every CustomResourceDefinition, one file a kind."""
    return {
        f"{kind.definition.plural}.yaml": HEADER.format(kind=kind.definition.kind)
        + yaml.dump(crd(kind), Dumper=_PlainDumper, sort_keys=False, width=110, allow_unicode=True)
        for kind in KINDS
    }


@click.command("crds")
@click.option("--write", type=click.Path(path_type=Path, file_okay=False), help="Write the files into this directory.")
@click.option("--check", type=click.Path(path_type=Path, file_okay=False), help="Fail if its files differ.")
def crds(write: Path | None, check: Path | None) -> None:
    """Print, write or check the CustomResourceDefinitions."""
    files = render_all()
    if write is not None:
        write_files(write, files)
    if check is not None:
        check_files(check, files, f"wholenode crds --write {check}")
    if write is None and check is None:
        click.echo("---\n".join(files.values()), nl=False)
