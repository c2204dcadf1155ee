"""`latchwork workflows alerts` and `channels`: the alerts that were sent, and the channels that send them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latchwork.spi import (
    FAILURE,
    Grid,
    Json,
    Line,
    UsageError,
    command,
    group,
    print_change,
    print_list,
    say,
    say_json,
    show,
    utc_text,
)
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, open_client, resolve_home

if TYPE_CHECKING:
    from latchwork_workflows import Alert, Channel

_STYLES = {"sent": "green", "failed": "red", "unsure": "red", "sending": "cyan"}
_OVER = frozenset({"sent", "failed", "unsure"})
_NAME = Annotated[str, typer.Argument(metavar="CHANNEL", help="The name of a channel.")]


@command(
    "latchwork workflows alerts",
    "latchwork workflows alerts --state failed --json",
    "latchwork workflows alerts --run 17",
    "latchwork workflows alerts --resend 4",
)
def list_alerts(
    *,
    state: Annotated[
        str,
        typer.Option(
            metavar="STATE",
            show_default=False,
            help="Only alerts with a delivery in this state: pending, sending, sent, failed or unsure.",
        ),
    ] = "",
    run: Annotated[
        int | None, typer.Option(metavar="RUN", min=1, show_default=False, help="Only alerts of this run.")
    ] = None,
    resend: Annotated[
        int | None,
        typer.Option(
            metavar="DELIVERY", min=1, show_default=False, help="Send this delivery again instead of listing alerts."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of entries, newest first.")] = 20,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List alerts with their deliveries, or send a delivery again.

    Each delivery is sent at least once, unless its channel rejects it, and at most twice. If the answer is lost, it is
    sent once more. If that answer is lost too, its status is unsure.
    """
    with open_client(resolve_home(home, database), url) as client:
        if resend is not None:
            client.alerts.resend(resend)
            print_change(f"delivery {resend} will be sent again", {"delivery": resend}, as_json=as_json)
            return
        found = client.alerts.list(state=state, run=run, limit=limit)
    if as_json:
        say_json({"alerts": [each.model_dump() for each in found]})
    elif found:
        show(Grid([row for each in found for row in _alert_rows(each)], right=("alert", "delivery", "run", "tries")))
    else:
        say("no alerts")


@command("latchwork workflows channels list", "latchwork workflows channels list --json")
def list_channels(
    *, url: ApiUrl = None, home: HomeDir = None, database: DatabaseUrl = None, as_json: Json = False
) -> None:
    """List the channels, the secrets that each uses, and the workflows that name it."""
    with open_client(resolve_home(home, database), url) as client:
        found = client.channels.list()
    empty = "no channels; create one with `latchwork workflows channels set NAME --kind smtp -o host=...`"
    print_list("channels", found, _channel_row, plain=lambda each: each.model_dump(), empty=empty, as_json=as_json)


@command(
    "latchwork workflows channels set ops --kind smtp -o host=mail.example.org -o sender=flows@example.org "
    "-o to=ops@example.org -o user=flows -o 'password=${secret:MAIL}'",
    "latchwork workflows channels set chat --kind webhook -o 'url=https://hooks.example.org/${secret:HOOK}'",
    "latchwork workflows channels set chat --kind webhook -o url=https://hooks.example.org --disabled",
)
def set_channel(
    name: _NAME,
    *,
    kind: Annotated[str, typer.Option(metavar="KIND", help="smtp, webhook or apprise.")],
    option: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--option",
            metavar="NAME=VALUE",
            show_default=False,
            help="An option of the channel. Repeat it for lists (to) and headers (headers.X-Team=ops).",
        ),
    ] = None,
    disabled: Annotated[
        bool, typer.Option("--disabled", help="Store the channel, but send nothing through it.")
    ] = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Create or replace a channel. Secrets are referenced as ${secret:NAME} and never stored.

    Masters look for them where workers do: in LATCHWORK_CHANNEL_SECRET_<NAME>, or in a file of --secrets-dir.
    """
    options = _parse_options(option or [], kind)
    with open_client(resolve_home(home, database), url) as client:
        is_new = client.channels.set(name, kind, options, enabled=not disabled)
    what = "created" if is_new else "updated"
    print_change(f"channel {name} {what}", {"channel": name, "kind": kind, "is_new": is_new}, as_json=as_json)


@command("latchwork workflows channels rm ops")
def remove_channel(
    name: _NAME, *, url: ApiUrl = None, home: HomeDir = None, database: DatabaseUrl = None, as_json: Json = False
) -> None:
    """Delete a channel. Its pending deliveries wait for a new channel of this name, and finally fail."""
    with open_client(resolve_home(home, database), url) as client:
        client.channels.remove(name)
    print_change(f"channel {name} deleted", {"channel": name}, as_json=as_json)


@command("latchwork workflows channels test ops")
def send_test_alert(
    name: _NAME,
    *,
    timeout_s: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for a master to send it.")] = 60.0,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Let a master send a test message and print the result. Exit code 1 unless the channel accepted it."""
    with open_client(resolve_home(home, database), url) as client:
        number = client.channels.test(name)
        until = time.monotonic() + timeout_s
        while True:
            found = client.alerts.get(number)
            row = found.deliveries[0]
            if row.state in _OVER or row.error or time.monotonic() >= until:
                break
            time.sleep(0.2)
    if as_json:
        say_json(found.model_dump())
    else:
        why = row.error or ("" if row.state == "sent" else "no master has sent the test yet")
        show(Line(f"channel {name}: {row.state}{': ' + why if why else ''}", _STYLES.get(row.state, "red")))
    if row.state != "sent":
        raise typer.Exit(FAILURE)


def _parse_options(given: list[str], kind: str) -> dict[str, Any]:
    """Parse ``-o a=1 -o to=x -o to=y -o headers.X=z`` into values. Numeric options become numbers."""
    found: dict[str, Any] = {}
    for each in given:
        name, equal, value = each.partition("=")
        if not equal:
            raise UsageError(f"{each!r:.60} is not of the form NAME=VALUE")
        outer, dot, inner = name.partition(".")
        if dot:
            found.setdefault(outer, {})[inner] = value
        elif name == "to" and kind == "smtp":
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found


def _alert_rows(found: Alert) -> list[dict[str, str]]:
    about = {
        "alert": str(found.id),
        "when": utc_text(found.at),
        "what": f"{found.kind} {found.task}".strip(),
        "workflow": f"{found.project}.{found.name}" if found.project else "",
        "run": str(found.run or ""),
    }
    return [
        {
            **about,
            "channel": each.channel,
            "delivery": str(each.id),
            "state": each.state,
            "tries": str(each.tries + each.doubts),
            "error": each.error or "",
        }
        for each in found.deliveries
    ]


def _channel_row(found: Channel) -> dict[str, str]:
    return {
        "channel": found.name,
        "kind": found.kind if found.enabled else f"{found.kind}, off",
        "secrets": ", ".join(found.secrets),
        "workflows": ", ".join(found.workflows),
    }


channels_app = group(
    "Alert channels: mail, webhooks, and services supported by Apprise.",
    list=list_channels,
    set=set_channel,
    rm=remove_channel,
    test=send_test_alert,
)
