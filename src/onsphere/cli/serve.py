"""The commands `onsphere serve` and `onsphere new-key`: a model behind HTTP."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from onsphere.cli.console import print_json, print_message
from onsphere.cli.options import CoverageOfFit

__all__ = ["new_key", "serve"]

_LIMITS, _STORING = "Limits", "Storing and watching"


def serve(
    model: Annotated[
        Path, typer.Argument(help="A .onsphere or .onnx file.", show_default=False, envvar="ONSPHERE_MODEL")
    ],
    host: Annotated[str | None, typer.Option(help="Where to listen.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one.", show_default="8000")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes, or replicas on Ray.", show_default="1")] = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="Where to run.", envvar="ONSPHERE_ENGINE")] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="A Ray cluster.", envvar="ONSPHERE_ADDRESS", show_default="a new one on this machine"),
    ] = None,
    keys_file: Annotated[
        Path | None, typer.Option(help="Hashes of API keys, one per line; also ONSPHERE_API_KEYS.", show_default=False)
    ] = None,
    open_to_all: Annotated[
        bool | None, typer.Option("--open", help="No keys, though others can reach the service.", show_default=False)
    ] = None,
    certfile: Annotated[Path | None, typer.Option(help="A certificate, to serve over TLS.", show_default=False)] = None,
    keyfile: Annotated[Path | None, typer.Option(help="Its private key.", show_default=False)] = None,
    forwarded_allow_ips: Annotated[
        str | None,
        typer.Option(help="Proxies whose X-Forwarded-… headers are believed, with commas.", show_default="none"),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="Where assessments and the alarm are kept: a SQLite file or postgresql://….",
            show_default="MODEL.sqlite",
            rich_help_panel=_STORING,
        ),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(help="Requests to keep.", show_default="10000", rich_help_panel=_STORING)
    ] = None,
    keep_rows: Annotated[
        bool | None,
        typer.Option(
            help="Keep the features of rejected rows, and of rows with a key.",
            show_default="yes",
            rich_help_panel=_STORING,
        ),
    ] = None,
    keep_answers: Annotated[
        int | None,
        typer.Option(help="Rows that wait for a label.", show_default="100000", rich_help_panel=_STORING),
    ] = None,
    log_values: Annotated[
        bool | None,
        typer.Option("--log-values", help="Write features to the logs.", show_default="no", rich_help_panel=_STORING),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Chance of a false alarm of drift.", show_default="0.01", rich_help_panel=_STORING),
    ] = None,
    coverage: CoverageOfFit = None,
    max_body: Annotated[
        int | None, typer.Option(help="Bytes of a request.", show_default="16 MiB", rich_help_panel=_LIMITS)
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option(help="Rows of a request.", show_default="50000", rich_help_panel=_LIMITS)
    ] = None,
    max_concurrent: Annotated[
        int | None,
        typer.Option(help="Requests at a time, per worker.", show_default="64", rich_help_panel=_LIMITS),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for an answer.", show_default="30", rich_help_panel=_LIMITS)
    ] = None,
    read_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds for a request to arrive.", show_default="10", rich_help_panel=_LIMITS),
    ] = None,
    store_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds for the database; then rows are answered without it.",
            show_default="0.25",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    trial_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds for a new model to answer one row.", show_default="60", rich_help_panel=_LIMITS),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(help="Seconds for what is in flight at the end.", show_default="30", rich_help_panel=_LIMITS),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(help="Seconds between looks at the model's file; 0 for none.", show_default="2"),
    ] = None,
    trusted: Annotated[
        str | None,
        typer.Option(help="More types that the model's file may contain, with commas.", show_default="none"),
    ] = None,
    telemetry: Annotated[
        bool | None,
        typer.Option("--telemetry", help="Send traces by OpenTelemetry.", show_default="no", rich_help_panel=_STORING),
    ] = None,
) -> None:
    """Serve a model over HTTP, with a live page at /, a drift alarm and metrics; SIGHUP loads the file again.

    Every option can come from the environment as well: --read-timeout from ONSPHERE_READ_TIMEOUT, and so on.
    """
    from onsphere.errors import InvalidInputError
    from onsphere.service import Settings
    from onsphere.service import serve as run

    settings = Settings(
        str(model),
        host=host,
        port=port,
        workers=workers,
        keys_file=None if keys_file is None else str(keys_file),
        open=open_to_all,
        certfile=None if certfile is None else str(certfile),
        keyfile=None if keyfile is None else str(keyfile),
        forwarded_allow_ips=forwarded_allow_ips,
        store=store,
        keep=keep,
        keep_rows=keep_rows,
        keep_answers=keep_answers,
        watch=watch,
        trusted=trusted,
        log_values=log_values,
        alpha=alpha,
        coverage=coverage,
        max_body=max_body,
        max_rows=max_rows,
        max_concurrent=max_concurrent,
        timeout=timeout,
        read_timeout=read_timeout,
        store_timeout=store_timeout,
        trial_timeout=trial_timeout,
        grace=grace,
        telemetry=telemetry,
    )
    if address is not None and engine != "ray":
        raise InvalidInputError(f"Expected --engine ray with --address {address}. Got {engine}. Add --engine ray.")
    if engine == "ray":
        from onsphere.scale.serving import serve_on_ray

        run = partial(serve_on_ray, address=address)
    run(settings, on_ready=lambda address: print(f"Serving {model} at {address} (Ctrl+C stops it)", flush=True))


def new_key(
    name: Annotated[str, typer.Argument(help="Whom it is for; the logs show it.")] = "",
    role: Annotated[
        Literal["assess", "operate"],
        typer.Option(help="What it may do: assess rows and send labels, or reload and reset as well."),
    ] = "operate",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Make an API key for `onsphere serve`: the key for the client, the hash for the service."""
    from onsphere.errors import InvalidInputError
    from onsphere.service import hash_key, make_key
    from onsphere.service.settings import read_keys

    key = make_key()
    line = f"{name} {hash_key(key)} {role}".strip()
    try:
        read_keys([line])
    except InvalidInputError:
        raise InvalidInputError(
            f"Expected a name of letters, digits, '.', '_' and '-'. Got {name!r}. Choose another name."
        ) from None
    if as_json:
        print_json({"key": key, "hash": line})
        return
    print(key)
    print_message(f"Give the key to the client; it is not shown again. Put this in the service's keys file: {line}")
