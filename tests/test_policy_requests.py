"""The settings that server engines read from a request's fields: lines of the table, one per section."""

import numpy as np
import pytest
import torch

from lz_penalty import LZPenaltyConfig
from lz_penalty import packing as col
from lz_penalty.engines.request_settings import RequestSettings
from lz_penalty.engines.server import ServerSettings
from lz_penalty.packing import pack_configs
from lz_penalty.policy import SECTIONS, Policy

SPECIAL = (3, 7)


@pytest.fixture
def settings():
    return RequestSettings(ServerSettings(), SPECIAL, 4, torch.device("cpu"))


def line_of(config):
    return pack_configs(config).table[0][: col.EXEMPT_BEGIN]


def test_one_line_per_section(settings):
    found = settings.read({"lz_policy": "default", "lz_stop_copies": 20}, 2)
    assert found.asked.ladder.stop_copies == 20
    for name, line in zip(SECTIONS, found.lines, strict=True):
        assert (line[: col.EXEMPT_BEGIN] == line_of(getattr(Policy(), name))).all()
        wanted = (0, 0) if getattr(Policy(), name) is None else (0, len(SPECIAL))
        assert (line[col.EXEMPT_BEGIN], line[col.EXEMPT_END]) == wanted
    assert (found.line == found.lines[SECTIONS.index("answer")]).all()
    assert found.reach == 4096


def test_plain_requests_are_as_before(settings):
    found = settings.read({"lz_preset": "guarded", "lz_exempt_token_ids": [5]}, 2)
    assert found.asked is None
    assert (found.lines == found.line).all()
    assert (found.line[: col.EXEMPT_BEGIN] == line_of(LZPenaltyConfig.guarded())).all()
    packed = settings.pack(found.line[None])
    assert packed.exempt_ids[found.line[col.EXEMPT_BEGIN] : found.line[col.EXEMPT_END]].tolist() == [3, 5, 7]
    assert settings.read({}, 0) is None
    assert settings.read({"lz_penalty": 0}, 0) is None


def test_a_ladder_alone(settings):
    found = settings.read({"lz_stop_copies": 20}, 0)
    assert not np.any(found.lines)
    assert (found.reach, found.asked.ladder.stop_copies) == (0, 20)
