"""`lz-penalty guard`: a proxy that cuts answers which loop, in front of any OpenAI-compatible endpoint."""

from __future__ import annotations

from pathlib import Path

import typer

ACTIONS = "What happens in a loop"
LOOPS = "What a loop is in a stream"
LIMITS = "Limits"


def guard(
    upstream: str = typer.Option(None, metavar="URL", help="The endpoint, such as https://api.example.com."),
    config: Path = typer.Option(None, help="A TOML file with settings; variables and flags win over it."),
    host: str = typer.Option(None, help="The address to listen on. [default: 127.0.0.1]"),
    port: int = typer.Option(None, help="The port. [default: 8400]"),
    action: str = typer.Option(
        None, help="In a loop: cut, continue, retry or watch. [default: cut]", rich_help_panel=ACTIONS
    ),
    finish_reason: str = typer.Option(
        None, help="Of a cut answer: stop, length or repetition. [default: stop]", rich_help_panel=ACTIONS
    ),
    allow_header: bool = typer.Option(
        None,
        "--allow-header/--no-allow-header",
        help="Let a request choose its action. [default: yes]",
        rich_help_panel=ACTIONS,
    ),
    max_period: int = typer.Option(None, help="Characters of the longest unit. [default: 2048]", rich_help_panel=LOOPS),
    min_copies: float = typer.Option(
        None, help="The least number of copies of a loop. [default: 5]", rich_help_panel=LOOPS
    ),
    min_length: int = typer.Option(
        None, help="The least characters of a loop of words. [default: 2000]", rich_help_panel=LOOPS
    ),
    min_length_data: int = typer.Option(
        None, help="The least characters of another loop. [default: 5000]", rich_help_panel=LOOPS
    ),
    max_body: int = typer.Option(None, help="Bytes of a request's body. [default: 16 MiB]", rich_help_panel=LIMITS),
    max_answer: int = typer.Option(
        None, help="Bytes of the longest whole answer that is examined. [default: 4 MiB]", rich_help_panel=LIMITS
    ),
    max_event: int = typer.Option(
        None, help="Bytes of the longest event that is examined. [default: 64 KiB]", rich_help_panel=LIMITS
    ),
    max_connections: int = typer.Option(None, help="Connections at a time. [default: 1024]", rich_help_panel=LIMITS),
    body_seconds: float = typer.Option(
        None, help="How long a request's body may take. [default: 60]", rich_help_panel=LIMITS
    ),
    connect_seconds: float = typer.Option(
        None, help="How long connecting may take. [default: 10]", rich_help_panel=LIMITS
    ),
    idle_seconds: float = typer.Option(
        None, help="How long upstream may be silent. [default: 600]", rich_help_panel=LIMITS
    ),
    answer_seconds: float = typer.Option(
        None, help="How long an answer may take. [default: 7200]", rich_help_panel=LIMITS
    ),
    grace_seconds: float = typer.Option(
        None, help="How long answers may go on after SIGTERM. [default: 30]", rich_help_panel=LIMITS
    ),
    plugin: str = typer.Option(
        None,
        help="Where upstream reads lz_* fields: auto, none, flat, vllm or sglang. [default: auto]",
        rich_help_panel=ACTIONS,
    ),
    retry_temperature: float = typer.Option(
        None, help="The least temperature of a retry. [default: 0.7]", rich_help_panel=ACTIONS
    ),
    retry_frequency_penalty: float = typer.Option(
        None, help="Its least frequency penalty. [default: 0.5]", rich_help_panel=ACTIONS
    ),
    continue_final_message: bool = typer.Option(
        None,
        "--continue-final-message/--no-continue-final-message",
        help="Upstream can continue a message, as vLLM and SGLang can. [default: no]",
        rich_help_panel=ACTIONS,
    ),
    instruction: str = typer.Option(None, help="What asks upstream to continue otherwise.", rich_help_panel=ACTIONS),
    ca_file: str = typer.Option(None, help="Certificates to check upstream with."),
) -> None:
    """Run a proxy that cuts looping answers of any endpoint.

    Examples:
        lz-penalty guard --upstream https://api.example.com
        lz-penalty guard --upstream http://localhost:8000 --action watch
        lz-penalty guard --config guard.toml --port 8500

    The endpoint must be OpenAI-compatible. Every option is also a variable, such as LZ_PENALTY_GUARD_UPSTREAM, and a name in
    the file of --config. LZ_PENALTY_GUARD_ROUTES, or `routes` in the file, sets the action of each route, such as
    chat=retry,responses=watch. An answer that does not stream is also examined as by `lz-penalty detect`, for which a shorter
    loop is enough.
    """
    given = {name: value for name, value in locals().items() if name != "config"}

    from lz_penalty.guard._app import serve
    from lz_penalty.guard._settings import read_settings

    serve(read_settings(given, file=config))
