"""fednlp doctor."""

from typing import Annotated

import typer


def doctor(
    target: Annotated[
        str,
        typer.Argument(
            help="The file of a join token (it is not used up), - to read it from standard input, host:port, or the "
            "name of a federation that was joined."
        ),
    ],
) -> None:
    """Check whether this machine can take part: name, port, proxy, TLS, clock, versions, device, disk."""
    from fednlp.deployment.operate.doctor import examine, target_of
    from fednlp.deployment.operate.findings import GOOD, WRONG
    from fednlp.formatting.safe_text import clean

    found = []
    for one in examine(target_of(target)):
        remedy = f": {one.remedy}" if one.remedy else ""
        mark = "ok" if one.state == GOOD else one.state
        print(f"{mark:8} {one.check:9} {clean(one.text)}{remedy}", flush=True)
        found.append(one)
    if any(one.state == WRONG for one in found):
        raise typer.Exit(1)
