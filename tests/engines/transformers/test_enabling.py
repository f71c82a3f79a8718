"""`enable()` and `disable()` next to other libraries that patch the same methods, in threads, and half-way."""

import functools
import threading

import pytest
from transformers import GenerationConfig, GenerationMixin
from transformers.cli.serving.utils import BaseHandler
from transformers.generation.continuous_batching.requests import RequestState

from lz_penalty.engines import transformers as lz
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor
from lz_penalty.engines.transformers import _enabling as enabling
from lz_penalty.engines.transformers import _serving as serving
from lz_penalty.engines.transformers._patching import Patches
from lz_penalty.engines.transformers._settings import FIELDS
from lz_penalty.errors import BackendUnavailableError, LZPenaltyError
from tests.support.greedy import PRESETS, generate

SETTINGS = PRESETS["guarded"].to_request() | {"max_new_tokens": 30}


def state():
    """Everything that `enable()` may change, as it is now."""
    owners = {owner for owner, _, _ in enabling._CHANGES} | {GenerationConfig}
    return {owner: dict(vars(owner)) for owner in owners}


@pytest.fixture(autouse=True)
def _as_before():
    before = state()
    yield
    lz.disable()
    assert state() == before


@pytest.fixture(scope="module")
def outputs(model, prompts):
    """Tokens without and with the penalty, by a processor: no method of transformers is changed for them."""
    processor = LZPenaltyLogitsProcessor(PRESETS["guarded"], model_config=model.generation_config)
    plain, penalised = (generate(model, [prompts[1]], one, max_new_tokens=30).tolist() for one in (None, processor))
    assert plain != penalised
    return plain, penalised


class Library:
    """Another library: it puts a method of its own in the place of one of transformers."""

    def __init__(self, owner, name, how):
        self.owner, self.name, self.calls = owner, name, 0
        self.saved = vars(owner).get(name)
        original = getattr(owner, name)

        def patched(*args, **kwargs):
            self.calls += 1
            return original(*args, **kwargs)

        self.patched = functools.wraps(original)(patched) if how == "functools.wraps" else patched

    def __enter__(self):
        setattr(self.owner, self.name, self.patched)
        return self

    def __exit__(self, *_):
        setattr(self.owner, self.name, self.saved)


HOW = pytest.mark.parametrize("how", ["functools.wraps", "a closure"])


@HOW
def test_a_method_that_another_library_has_wrapped_stays_wrapped(model, prompts, outputs, how):
    plain, penalised = outputs
    original = GenerationMixin._get_logits_processor
    lz.enable()
    with Library(GenerationMixin, "_get_logits_processor", how) as other:
        for calls in (1, 3):
            lz.enable()
            assert GenerationMixin._get_logits_processor is other.patched
            assert generate(model, [prompts[1]], None, **SETTINGS).tolist() == penalised
            assert other.calls == calls
            lz.disable()
            assert GenerationMixin._get_logits_processor is other.patched
            assert generate(model, [prompts[1]], None, max_new_tokens=30).tolist() == plain
            with pytest.raises(ValueError, match="lz_penalty"):
                generate(model, [prompts[1]], None, **SETTINGS)
        lz.enable()
    assert generate(model, [prompts[1]], None, **SETTINGS).tolist() == penalised  # the other one is gone, we are not
    lz.disable()
    assert GenerationMixin._get_logits_processor is original


@HOW
def test_the_change_is_off_below_another_library(how):
    """No `lz_*` field can show it here: the generation must not be fed twice, and not at all after `disable()`."""
    fed = []

    class Generation:
        stopped, push = None, fed.append

    def step():
        one = RequestState(request_id="0", initial_tokens=[1, 2], max_new_tokens=9)
        one.lz_generation = Generation
        one.status = one.status.DECODING
        one.update_and_check_completion(7, None)
        told = fed.copy()
        fed.clear()
        return told

    assert step() == []
    lz.enable()
    assert step() == [7]
    with Library(RequestState, "update_and_check_completion", how):
        lz.enable()
        assert step() == [7]
        lz.disable()
        assert step() == []
        lz.enable()
        assert step() == [7]


def test_a_method_that_another_library_has_replaced_is_wrapped_again(model, prompts, outputs):
    """The other library calls the method of before `enable()`."""
    plain, penalised = outputs
    with Library(GenerationMixin, "_get_logits_processor", "a closure") as other:
        pass  # made, and taken away
    lz.enable()
    GenerationMixin._get_logits_processor = other.patched
    try:
        lz.disable()
        assert GenerationMixin._get_logits_processor is other.patched
        lz.enable()
        assert generate(model, [prompts[1]], None, **SETTINGS).tolist() == penalised
        lz.disable()
        assert GenerationMixin._get_logits_processor is other.patched
        assert generate(model, [prompts[1]], None, max_new_tokens=30).tolist() == plain
    finally:
        GenerationMixin._get_logits_processor = other.saved


def test_fields_that_were_there_are_put_back():
    GenerationConfig.lz_penalty = 0.7
    try:
        for _ in range(2):
            lz.enable()
            lz.enable()
            assert (GenerationConfig.lz_penalty, GenerationConfig.lz_preset) == (None, None)
            lz.disable()
            assert GenerationConfig.lz_penalty == 0.7
            assert not hasattr(GenerationConfig, "lz_preset")
        lz.enable()
        GenerationConfig.lz_preset = "paper"
        lz.disable()
        assert GenerationConfig.lz_preset == "paper"  # somebody else's
        del GenerationConfig.lz_preset
    finally:
        del GenerationConfig.lz_penalty


def test_nothing_is_disabled_that_was_not_enabled():
    setattr(GenerationConfig, FIELDS[0], None)
    lz.disable()
    assert FIELDS[0] in vars(GenerationConfig)
    delattr(GenerationConfig, FIELDS[0])


@pytest.mark.parametrize("already", [False, True])
def test_all_or_nothing(monkeypatch, already):
    """The last method is missing in this version of transformers; then making the last change fails."""
    if already:
        lz.enable()
    before = state()

    def fails(original):
        raise RuntimeError("in the middle")

    for name, change, error, told in (
        ("_gone", None, BackendUnavailableError, r"transformers \d.* has no BaseHandler\._gone: nothing was changed"),
        ("_get_cb_kwargs", fails, RuntimeError, "in the middle"),
    ):
        if change is not None:
            monkeypatch.setattr(BaseHandler, name, lambda self: None, raising=False)
            before = state()
        monkeypatch.setattr(enabling, "_CHANGES", (*enabling._CHANGES, (BaseHandler, name, change)))
        with pytest.raises(error, match=told):
            lz.enable()
        assert state() == before
        monkeypatch.undo()


def test_a_class_that_cannot_be_changed_leaves_the_others_as_they_were():
    class Strict(type):
        def __setattr__(cls, name, value):
            raise TypeError("no")

    class Base:
        def method(self):
            return 1

    class Child(Base):
        """A class that inherits the method."""

    class Last(metaclass=Strict):
        def method(self):
            return 1

    def doubled(original):
        return lambda self: 2 * original(self)

    patches = Patches()
    with pytest.raises(TypeError, match="no"):
        patches.make([(Child, "method", doubled), (Last, "method", doubled)], [(Child, "field")])
    assert "method" not in vars(Child)
    assert not hasattr(Child, "field")
    assert not patches.made
    patches.make([(Child, "method", doubled)], [(Child, "field")])
    assert (Child().method(), Base().method(), Child.field) == (2, 1, None)
    patches.undo()
    assert Child().method() == 1
    assert not {"method", "field"} & vars(Child).keys()


def test_a_wrapper_that_another_library_puts_back_works_again():
    class Owner:
        def method(self):
            return 1

    def doubled(original):
        return lambda self: 2 * original(self)

    patches, changes = Patches(), [(Owner, "method", doubled)]
    patches.make(changes)
    ours = Owner.method
    Owner.method = lambda self: 10
    patches.make(changes)
    assert Owner().method() == 20
    Owner.method = lambda self, below=Owner.method: below(self)
    assert Owner().method() == 20
    Owner.method = ours
    assert Owner().method() == 2
    patches.undo()
    assert Owner().method() == 1


def test_handlers_that_are_loaded_later_are_changed_too_and_only_while_enabled():
    def loaded():
        class Handler(BaseHandler):
            async def _non_streaming(self, request_id):
                return request_id

        return Handler

    handlers = [loaded()]
    lz.enable()
    handlers += [loaded()]
    original = [vars(handler)["_non_streaming"] for handler in handlers]
    assert handlers[0]._non_streaming.__wrapped__.__qualname__ == handlers[1]._non_streaming.__qualname__
    handlers[1](None, None)
    assert vars(handlers[1])["_non_streaming"] is not original[1]
    lz.disable()
    assert vars(handlers[1])["_non_streaming"] is original[1]
    assert not hasattr(handlers[0]._non_streaming, "__wrapped__")
    handlers += [loaded()]
    handlers[2](None, None)
    assert not hasattr(handlers[2]._non_streaming, "__wrapped__")


def test_many_threads():
    """Each change is made once. At the end all changes are undone."""
    start = threading.Barrier(8)
    errors = []

    def work():
        start.wait()
        try:
            for _ in range(20):
                lz.enable()
                lz.disable()
                lz.enable()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    before = state()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    layers, one = 0, GenerationMixin.generate
    while one is not before[GenerationMixin]["generate"]:
        layers, one = layers + 1, one.__wrapped__
    assert layers == 1
    lz.disable()
    assert state() == before


def test_before_a_model_is_loaded_only_what_no_default_makes_right_is_refused():
    """A default of the model or the server may have a buffer of 4,096 tokens, and that is not known yet."""
    from fastapi import HTTPException

    check = serving._validate_request(lambda self, body: body)
    assert check(None, {"model": "m", "lz_min_match_length": 34}) == {"model": "m"}
    with pytest.raises(HTTPException, match="lz_min_match_length = 5000"):
        check(None, {"lz_min_match_length": 5000})
    with pytest.raises(HTTPException, match="at most lz_buffer_size"):
        check(None, {"lz_buffer_size": 3, "lz_min_match_length": 5})


def test_a_name_that_does_not_exist_is_refused(model, prompts):
    lz.enable()
    with pytest.raises(LZPenaltyError, match=r"lz_strength = 0\.3: unknown field\. Did you mean"):
        generate(model, [prompts[0]], None, max_new_tokens=2, lz_strength=0.3)
