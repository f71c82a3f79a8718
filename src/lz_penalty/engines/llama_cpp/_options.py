"""The options of `lz-penalty serve-llama`: our own, and all of llama-cpp-python's server, read by its own parser.

Nothing else sets a server up: the stock server's environment variables and its `CONFIG_FILE` are not read.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from llama_cpp.server.cli import add_args_from_model
from llama_cpp.server.settings import ModelSettings, Settings
from llama_cpp.server.settings import ServerSettings as StockSettings
from pydantic import ValidationError

from lz_penalty._checks import integer
from lz_penalty._files import read_toml
from lz_penalty.engines.server import ServerSettings, server_settings
from lz_penalty.errors import LZPenaltyError, bad_value, unknown_field

__all__ = ["GivenModel", "GivenServer", "Options", "ServedModel", "first_errors", "read_models", "read_options"]

KEY_VARIABLE = "LZ_PENALTY_API_KEY"
MAX_FILE = 64 * 1024  # bytes of the file of --models
_MAX_ERRORS = 3  # in a message
_MAX_LISTED = 256  # with more errors, pydantic's list would take too long
_MAX_PLACE = 80  # characters of an error's location and of its message, which contain the client's text
_OWN = ("alias", "path", "default")  # keys of a model in the file
_STOCK = {"model": "path", "model_alias": "alias"}  # their names in the stock server


class _Given:
    """Settings of the stock server that ignore the environment."""

    @classmethod
    def settings_customise_sources(cls, settings_cls: Any, init_settings: Any, **others: Any) -> Any:
        """Return the sources of values, for pydantic."""
        return (init_settings,)


class GivenServer(_Given, StockSettings):
    """The stock server's settings, with our default address."""

    host: str = "127.0.0.1"


class GivenModel(_Given, ModelSettings):
    """The stock server's settings of a model, without its debug output."""

    verbose: bool = False


class ServedModel(NamedTuple):
    """A model of a server.

    Attributes:
        settings: what the stock server needs to load it.
        operator: the default penalty and caps of its requests.
    """

    settings: ModelSettings
    operator: ServerSettings


class Options(NamedTuple):
    """What a server is started with; requests for other names go to the first model."""

    server: StockSettings
    models: list[ServedModel]


def read_options(arguments: Sequence[str]) -> Options:
    """Return the options on a command line; hyphens in their names count as underscores."""
    given = {
        name: value for name, value in vars(_parser().parse_args(_underscored(arguments))).items() if value is not None
    }
    file, models, replaced = (given.pop(name, None) for name in ("file", "models", "config_file"))
    if replaced is not None:
        raise LZPenaltyError(
            "--config_file: not supported, because it would replace the API key. Use --models FILE.toml."
        )
    own = {name: given.pop(name) for name in list(given) if name in ModelSettings.model_fields}
    given.setdefault("api_key", os.environ.get(KEY_VARIABLE) or None)
    server = _checked(GivenServer, given)
    _check_server(server)
    if models is not None:
        if file is not None or own:
            name = "MODEL.gguf" if file is not None else f"--{next(iter(own))}"
            raise LZPenaltyError(f"{name} has no effect with --models {models}. Set it for a model in that file.")
        return Options(server, read_models(Path(models)))
    if (file is None) == ("model" not in own):
        raise LZPenaltyError(
            "exactly one of MODEL.gguf, --model MODEL.gguf and --models FILE.toml must be given. "
            "See lz-penalty serve-llama --help."
        )
    model = _checked(GivenModel, own if file is None else own | {"model": file})
    _check_file(model)
    return Options(server, [ServedModel(model, operator())])


def read_models(path: Path) -> list[ServedModel]:
    """Return the models in a TOML file: tables `[[models]]` with `alias`, `path`, `default` and the stock server's options.

    A relative path is relative to the folder of the file.
    """
    tables = read_toml(path, MAX_FILE, "--models")
    for name, value in tables.items():
        if name != "models":
            raise LZPenaltyError(f"--models {path}: {unknown_field(name, value, ['models'])}")
    given = tables.get("models")
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise LZPenaltyError(f"--models {path}: must contain one or more tables [[models]].")
    models = [_model(one, path, f"--models {path}: model {number}") for number, one in enumerate(given, 1)]
    aliases = [one.settings.model_alias for one in models]
    for alias in aliases:
        if aliases.count(alias) > 1:
            raise LZPenaltyError(f"--models {path}: alias = {alias!r} is given more than once. Use different names.")
    return models


def operator() -> ServerSettings:
    """Return the operator's default and caps from `LZ_PENALTY_SERVER`; raise if this server cannot apply them."""
    return server_settings().without_vllm_settings().without_policies()


def first_errors(error: ValidationError) -> str:
    """Return the first errors without their input. pydantic can only list all, so many errors are only counted."""
    if error.error_count() > _MAX_LISTED:
        return f"{error.error_count()} errors, too many to list. Correct the types of its fields"
    listed = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{_place(one['loc'])}: {one['msg'][:_MAX_PLACE]}" for one in listed[:_MAX_ERRORS])


def _place(place: tuple[int | str, ...]) -> str:
    text = ".".join(str(one)[:_MAX_PLACE] for one in place)
    return text if len(text) <= _MAX_PLACE else text[: _MAX_PLACE - 3] + "..."


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Raise for a bad command line; called by argparse."""
        raise LZPenaltyError(f"{message}. See lz-penalty serve-llama --help.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="lz-penalty serve-llama",
        usage="lz-penalty serve-llama MODEL.gguf [OPTIONS]\n       lz-penalty serve-llama --models FILE.toml [OPTIONS]",
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", metavar="MODEL.gguf", help="the model")
    parser.add_argument(
        "--models", metavar="FILE.toml", help="several models, each with its own options and default penalty"
    )
    parser.add_argument("--config_file", help=argparse.SUPPRESS)
    theirs = parser.add_argument_group(
        "llama-cpp-python's server",
        f"Here --host is 127.0.0.1 and --verbose is false by default, and --api_key can be set as {KEY_VARIABLE}.",
    )
    add_args_from_model(theirs, Settings)
    return parser


def _underscored(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the underscores of the stock server's options."""
    parts = [one.partition("=") for one in arguments]
    return [
        name[:2] + name[2:].replace("-", "_") + sign + value if name.startswith("--") else name + sign + value
        for name, sign, value in parts
    ]


def _model(given: dict[str, Any], file: Path, place: str) -> ServedModel:
    """Return one model of the file; `place` names it in errors."""
    known = [*_OWN, *(name for name in ModelSettings.model_fields if name not in _STOCK)]
    try:
        for name, value in given.items():
            if name not in known:
                raise unknown_field(name, value, known)
        for name in _STOCK.values():
            if not isinstance(given.get(name), str) or not given[name]:
                raise bad_value(name, given.get(name), "a text, and it must be given")
        options = {name: value for name, value in given.items() if name not in _OWN}
        local = "hf_model_repo_id" not in given
        path = str(file.parent / given["path"]) if local else given["path"]
        model = _checked(GivenModel, options | {"model": path, "model_alias": given["alias"]})
        _check_file(model)
        settings = operator()
        if "default" in given:
            settings = settings.with_default(given["default"]).without_policies("default")
    except LZPenaltyError as error:
        raise LZPenaltyError(f"{place}: {error}") from None
    return ServedModel(model, settings)


def _checked(kind: Any, given: dict[str, Any]) -> Any:
    """Return settings of the stock server, or raise its first errors as ours."""
    try:
        return kind(**given)
    except ValidationError as error:
        raise LZPenaltyError(f"{first_errors(error)}. See lz-penalty serve-llama --help.") from None


def _check_server(server: StockSettings) -> None:
    """Raise for what uvicorn would refuse only after the model is loaded."""
    integer(1, 65_535)("port", server.port)
    for name in ("ssl_certfile", "ssl_keyfile"):
        value = getattr(server, name)
        if value is not None and not Path(value).is_file():
            raise bad_value(name, value, "a file that exists")
    if server.ssl_keyfile is not None and server.ssl_certfile is None:
        raise LZPenaltyError("ssl_keyfile is given without ssl_certfile. Give both.")


def _check_file(model: ModelSettings) -> None:
    """Raise if a model is not a file here; one from the Hugging Face hub is downloaded by the stock server."""
    if model.hf_model_repo_id is None and not Path(model.model).is_file():
        raise bad_value("model", model.model, "a GGUF file that exists")
