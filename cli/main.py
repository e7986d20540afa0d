"""`wholenode`: the command line. Each group of commands has a module of its own."""

import click

from cli.claims import claims
from cli.crds import crds
from cli.doctor import doctor
from cli.dump import dump
from cli.lab import lab
from cli.ledger import ledger
from cli.manifests import manifests
from cli.plan import plan
from cli.why import why


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="wholenode")
def main() -> None:
    """Whole GPU nodes on demand, by agreement."""


main.add_command(lab)
main.add_command(crds)
main.add_command(manifests)
main.add_command(why)
main.add_command(plan)
main.add_command(claims)
main.add_command(ledger)
main.add_command(dump)
main.add_command(doctor)
