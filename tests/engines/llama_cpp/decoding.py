"""Greedy decoding in llama.cpp: by `Llama.generate`, by a chain of samplers, by a loop over its logits in Python."""

from itertools import islice

import llama_cpp
import numpy as np
from llama_cpp import Llama
from llama_cpp._internals import LlamaSampler

from lz_penalty.engines.llama_cpp._sampler import native_sampler
from tests.support.greedy import NEW, reference_loop

GREEDY = {"temp": 0.0, "repeat_penalty": 1.0}


def loaded(path, n_ctx=1024):
    """A model with its cache of keys and values in float32: by default it is float16, which moves logits by thousandths.

    One thread also for prompts: on a busy machine llama.cpp's threads wait for each other, and take 20 times as long.
    """
    cache = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    return Llama(str(path), n_ctx=n_ctx, n_threads=1, n_threads_batch=1, verbose=False, **cache)


def by_generate(llm, prompt, processors=None, new=NEW):
    """Return the tokens of `Llama.generate`, up to the end token."""
    out = []
    for token in islice(llm.generate(prompt, logits_processor=processors, **GREEDY), new):
        out.append(token)
        if token == llm.token_eos():
            break
    return out


def by_chain(llm, prompt, chain, new=NEW):
    """Return the tokens of a chain of samplers."""
    llm.reset()
    llm.eval(prompt)
    out = []
    while len(out) < new and (not out or out[-1] != llm.token_eos()):
        out.append(chain.sample(llm._ctx, -1))
        llm.eval([out[-1]])
    return out


def by_reference(llm, prompt, config, new=NEW):
    """Return the tokens of the reference loop in Python, and the margins."""

    def logits_after(tokens):
        llm.eval(tokens)
        return np.ctypeslib.as_array(llm._ctx.get_logits_ith(-1), (llm.n_vocab(),)).tolist()

    llm.reset()
    return reference_loop(logits_after, prompt, config, llm.token_eos(), new)


def chained(*samplers):
    """A greedy chain that begins with these samplers, and frees them."""
    chain = LlamaSampler()
    for sampler in samplers:
        llama_cpp.llama_sampler_chain_add(chain.sampler, sampler)
    chain.add_greedy()
    return chain


def with_history(llm, config, tokens, **options):
    """The native sampler after these tokens."""
    penalty = native_sampler(llm, config, **options)
    for token in tokens:
        llama_cpp.llama_sampler_accept(penalty, token)
    return penalty
