"""`lz-penalty serve-mlx`: mlx-lm's own server, with `lz_*` fields per request.

The stock server ignores unknown fields. So our handler reads the `lz_*` fields where the stock handler checks its own
fields, and an invalid one gets the stock server's answer: status 400 and `{"error": message}`. The settings travel with
the request to the thread that generates, which adds a processor to those of the stock server.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm import server as stock

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines._stock_server import check_calls
from lz_penalty.engines.mlx_lm._processor import LZPenaltyProcessor
from lz_penalty.engines.server import ServerSettings, server_settings

__all__ = ["serve"]

_FIELDS = ("APIHandler.validate_model_parameters", "APIHandler.handle_text_completions")
_PROCESSORS = ("ResponseGenerator._tokenize", "_make_logits_processors")  # of one request, in this order
_CALLS = {
    "main": ("run",),
    "run": ("ResponseGenerator", "_run_http_server"),
    "APIHandler.do_POST": (*_FIELDS, "APIHandler.handle_chat_completions", "APIHandler.handle_completion"),
    "APIHandler.handle_completion": ("ResponseGenerator.generate",),
    "ResponseGenerator._generate": (*_PROCESSORS, "ResponseGenerator._serve_single"),
    "ResponseGenerator._serve_single": _PROCESSORS,
}


def serve(arguments: Sequence[str]) -> None:
    """Run mlx-lm's server with the penalty until interrupted.

    Args:
        arguments: the options of mlx-lm's server, which reads them itself.
    """
    check_calls(stock, _CALLS, "mlx-lm", mlx_lm.__version__, "0.32.2")
    _add_penalty(server_settings().without_vllm_settings().without_policies())
    sys.argv = ["lz-penalty serve-mlx", *arguments]
    stock.main()


def _add_penalty(operator: ServerSettings) -> None:
    """Replace the handler, the generator and the processors of the stock server in this process."""
    start, processors_of = stock._run_http_server, stock._make_logits_processors
    handler, generator = _handler(operator), _generator(operator.penalise_special_tokens)

    def start_with_handler(*given: Any, **options: Any) -> Any:
        return start(*given, **(options | {"handler_class": handler}))

    def with_penalty(args: Any) -> list[Any]:
        """Return the processors of a request; the penalty is the first, as in the other engines."""
        return [*args.lz_processors, *processors_of(args)]

    stock._run_http_server = start_with_handler
    stock._make_logits_processors = with_penalty
    stock.ResponseGenerator = generator


def _handler(operator: ServerSettings) -> type[Any]:
    class Handler(stock.APIHandler):
        """The stock handler, which also reads `lz_*` fields."""

        def validate_model_parameters(self) -> None:
            """Check the fields of a request; the stock handler answers a `ValueError` with status 400."""
            super().validate_model_parameters()
            self.lz_config = operator.config_of(self.body)

        def handle_chat_completions(self) -> Any:
            return self._with_config(super().handle_chat_completions())

        def handle_text_completions(self) -> Any:
            return self._with_config(super().handle_text_completions())

        def _with_config(self, request: Any) -> Any:
            request.lz_config = self.lz_config
            return request

    return Handler


def _generator(penalise_special: bool) -> type[Any]:
    class Generator(stock.ResponseGenerator):
        """The stock generator, which also makes the processor of a request with a penalty."""

        def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
            found = super()._tokenize(tokenizer, request, args)
            config = request.lz_config
            args.lz_processors = [_processor(config, tokenizer, found[0], penalise_special)] if config else []
            return found

    return Generator


def _processor(
    config: LZPenaltyConfig, tokenizer: Any, prompt: Sequence[int], penalise_special: bool
) -> Callable[[mx.array, mx.array], mx.array]:
    """Return the processor of one request.

    The first call has the end of the prompt: all of it in a batch, what was not cached in a request that is served alone,
    one token with a draft model. Its length says how many tokens of the prompt are missing, in all calls.
    """
    made: list[LZPenaltyProcessor] = []

    def apply(tokens: mx.array, logits: mx.array) -> mx.array:
        if not made:
            made.append(
                LZPenaltyProcessor(
                    config,
                    tokenizer=tokenizer,
                    cached_tokens=prompt[: len(prompt) - tokens.size],
                    prompt_length=len(prompt),
                    penalise_special_tokens=penalise_special,
                )
            )
        return made[0](tokens, logits)

    return apply
