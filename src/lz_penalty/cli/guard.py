"""`lz-penalty guard`: a proxy that cuts answers which loop, in front of any OpenAI-compatible endpoint."""

from __future__ import annotations

from pathlib import Path

import typer


def guard(
    upstream: str = typer.Option(None, metavar="URL", help="The endpoint, such as https://api.example.com."),
    config: Path = typer.Option(None, help="A TOML file with settings; variables and flags win over it."),
    host: str = typer.Option(None, help="The address to listen on. [default: 127.0.0.1]"),
    port: int = typer.Option(None, help="The port. [default: 8400]"),
    action: str = typer.Option(None, help="In a loop: cut, continue, retry or watch. [default: cut]"),
    finish_reason: str = typer.Option(None, help="Of a cut answer: stop, length or repetition. [default: stop]"),
    allow_header: bool = typer.Option(
        None, "--allow-header/--no-allow-header", help="Let a request choose its action. [default: yes]"
    ),
    max_period: int = typer.Option(None, help="Characters of the longest unit. [default: 2048]"),
    min_copies: float = typer.Option(None, help="The least number of copies of a loop. [default: 5]"),
    min_length: int = typer.Option(None, help="The least characters of a loop of words. [default: 2000]"),
    min_length_data: int = typer.Option(None, help="The least characters of another loop. [default: 5000]"),
    max_body: int = typer.Option(None, help="Bytes of a request's body. [default: 16 MiB]"),
    max_answer: int = typer.Option(None, help="Bytes of the longest whole answer that is examined. [default: 4 MiB]"),
    max_event: int = typer.Option(None, help="Bytes of the longest event that is examined. [default: 64 KiB]"),
    max_connections: int = typer.Option(None, help="Connections at a time. [default: 1024]"),
    body_seconds: float = typer.Option(None, help="How long a request's body may take. [default: 60]"),
    connect_seconds: float = typer.Option(None, help="How long connecting may take. [default: 10]"),
    idle_seconds: float = typer.Option(None, help="How long upstream may be silent. [default: 600]"),
    answer_seconds: float = typer.Option(None, help="How long an answer may take. [default: 7200]"),
    grace_seconds: float = typer.Option(None, help="How long answers may go on after SIGTERM. [default: 30]"),
    plugin: str = typer.Option(
        None, help="Where upstream reads lz_* fields: auto, none, flat, vllm or sglang. [default: auto]"
    ),
    retry_temperature: float = typer.Option(None, help="The least temperature of a retry. [default: 0.7]"),
    retry_frequency_penalty: float = typer.Option(None, help="Its least frequency penalty. [default: 0.5]"),
    continue_final_message: bool = typer.Option(
        None,
        "--continue-final-message/--no-continue-final-message",
        help="Upstream can continue a message, as vLLM and SGLang can. [default: no]",
    ),
    instruction: str = typer.Option(None, help="What asks upstream to continue otherwise."),
    ca_file: str = typer.Option(None, help="Certificates to check upstream with."),
) -> None:
    """Watch the answers of an OpenAI-compatible endpoint and cut those that loop.

    Every option is also a variable (LZ_PENALTY_GUARD_UPSTREAM) and a name in the file of --config; there and in
    LZ_PENALTY_GUARD_ROUTES, `routes` sets the action per route.
    """
    given = {name: value for name, value in locals().items() if name != "config"}

    from lz_penalty.guard._app import serve
    from lz_penalty.guard._settings import read_settings

    serve(read_settings(given, file=config))
