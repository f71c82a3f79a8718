"""The settings that server engines read from a request's fields: settings rows, one per section."""

import numpy as np
import pytest
import torch

from lz_penalty import LZPenaltyConfig
from lz_penalty import _packing as col
from lz_penalty._packing import pack_configs
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines.server import ServerSettings
from lz_penalty.policy import SECTIONS, Policy, RequestPolicy, settings_from_request

SPECIAL = (3, 7)


@pytest.fixture
def settings():
    return SettingsReader(ServerSettings(), SPECIAL, 4, torch.device("cpu"))


def line_of(config):
    return pack_configs(config).table[0][: col.EXEMPT_BEGIN]


def test_one_line_per_section(settings):
    found = settings.read({"lz_policy": "default", "lz_stop_copies": 20}, 2)
    assert found.asked.ladder.stop_copies == 20
    for name, line in zip(SECTIONS, found.settings_rows, strict=True):
        assert (line[: col.EXEMPT_BEGIN] == line_of(getattr(Policy(), name))).all()
        wanted = (0, 0) if getattr(Policy(), name) is None else (0, len(SPECIAL))
        assert (line[col.EXEMPT_BEGIN], line[col.EXEMPT_END]) == wanted
    assert (found.settings_row == found.settings_rows[SECTIONS.index("answer")]).all()
    assert found.reach == 4096


def test_plain_requests_are_as_before(settings):
    found = settings.read({"lz_preset": "guarded", "lz_exempt_token_ids": [5]}, 2)
    assert found.asked is None
    assert (found.settings_rows == found.settings_row).all()
    assert (found.settings_row[: col.EXEMPT_BEGIN] == line_of(LZPenaltyConfig.guarded())).all()
    begin, end = found.settings_row[[col.EXEMPT_BEGIN, col.EXEMPT_END]]
    assert settings.pack(found.settings_row[None]).exempt_ids[begin:end].tolist() == [3, 5, 7]
    assert settings.read({}, 0) is None
    assert settings.read({"lz_penalty": 0}, 0) is None


def exempt_of(settings, found):
    """The exempt ids that the op finds for each penalised section, by its name."""
    ids = settings.pack(found.settings_rows).exempt_ids
    return {
        name: ids[line[col.EXEMPT_BEGIN] : line[col.EXEMPT_END]].tolist()
        for name, line in zip(SECTIONS, found.settings_rows, strict=True)
        if line.any()
    }


def test_sections_keep_their_own_exempt_ids():
    """A section that a request names has none of the default's exempt ids, as in transformers."""
    default = settings_from_request({"lz_policy": "default", "lz_exempt_token_ids": [9, 5]})
    settings = SettingsReader(ServerSettings(default=default), SPECIAL, 4, torch.device("cpu"))
    found = settings.read({"lz_code": "guarded"}, 2)
    rest = {key: [3, 5, 7, 9] for key in ("thinking", "answer", "table")}
    assert exempt_of(settings, found) == {"code": [3, 7], **rest}
    begins = {int(line[col.EXEMPT_BEGIN]) for line in found.settings_rows if line.any()}
    assert len(begins) == 2  # equal sets are stored once
    again = settings.read({"lz_code": "guarded", "lz_exempt_token_ids": [4]}, 3)
    assert exempt_of(settings, again) == {key: [3, 4, 7] for key in (*rest, "code")}
    assert exempt_of(settings, found)["answer"] == [3, 5, 7, 9]  # the slots do not overlap


def test_any_sets_of_exempt_ids_fit():
    """As many as there can be: the largest set in each section, all different."""
    sets = {name: tuple(range(100 + i, 100 + i + 1_024)) for i, name in enumerate(SECTIONS)}
    configs = {name: LZPenaltyConfig.guarded(exempt_token_ids=ids) for name, ids in sets.items()}
    server = ServerSettings(default=RequestPolicy(policy=Policy(**configs)))
    settings = SettingsReader(server, SPECIAL, 4, torch.device("cpu"))
    wanted = {name: [*SPECIAL, *ids] for name, ids in sets.items()}
    found = [settings.read({}, slot) for slot in (0, 3, 1)]
    assert [exempt_of(settings, one) for one in found] == [wanted] * 3


def test_a_ladder_alone(settings):
    found = settings.read({"lz_stop_copies": 20}, 0)
    assert not np.any(found.settings_rows)
    assert (found.reach, found.asked.ladder.stop_copies) == (0, 20)


def test_fields_of_others_do_not_matter_however_they_are_named(settings):
    asked = {"lz_preset": "guarded"}
    wanted = settings.read(asked, 0).settings_row.tolist()
    assert settings.read({7: "seven"} | asked, 0).settings_row.tolist() == wanted
    many = {
        f"field_{number}": number for number in range(2_000)
    }  # an engine may add its own to those that were checked
    assert settings.read(many | asked, 0).settings_row.tolist() == wanted
