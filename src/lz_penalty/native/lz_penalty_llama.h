/* The LZ penalty as a sampler of llama.cpp, on top of lz_penalty_stream.h. Include llama.h first.
 *
 *     lz_penalty_settings settings = lz_penalty_defaults();
 *     struct llama_sampler *penalty = lz_penalty_llama_init(&settings, llama_vocab_n_tokens(vocab));  // NULL: malformed
 *     llama_sampler_chain_add(chain, penalty);    // first, so that it sees all logits; the chain frees it
 *
 * The sampler considers the tokens that it accepts. `llama_sampler_sample` accepts each sampled token; the caller accepts
 * the prompt, or does not to leave it out. Written for the llama_sampler_i with twelve functions.
 */
#ifndef LZ_PENALTY_LLAMA_H
#define LZ_PENALTY_LLAMA_H

#include <stdlib.h>

#include "lz_penalty_stream.h"

typedef struct {
    lz_penalty_stream *stream;
    int32_t *places; /* of each id among candidates in another order, from 1; all 0 between two calls */
    int32_t n_vocab;
} lz_penalty_llama;

static inline lz_penalty_llama *lz_penalty_llama_context(const lz_penalty_settings *s, int32_t n_vocab)
{
    const size_t size = lz_penalty_stream_size(s), header = (sizeof(lz_penalty_llama) + 15) / 16 * 16;
    char *memory;
    lz_penalty_llama *context;
    if (!size || n_vocab < 1) return NULL;
    memory = (char *)malloc(header + size);
    if (!memory) return NULL;
    context = (lz_penalty_llama *)memory;
    context->n_vocab = n_vocab;
    context->places = (int32_t *)calloc((size_t)n_vocab, sizeof(int32_t));
    if (context->places && lz_penalty_stream_init(memory + header, size, s, &context->stream) == LZ_PENALTY_OK)
        return context;
    free(context->places);
    free(memory);
    return NULL;
}

/* Write the place of each candidate into `ids`, -1 if it has none: the logits may be in any order, without some ids. */
static inline void lz_penalty_llama__find(lz_penalty_llama *context, int32_t count, llama_token_data *data, size_t size)
{
    int32_t *ids = context->stream->penalty->ids, k;
    size_t i;
    for (i = 0; i < size; i++)
        if (data[i].id >= 0 && data[i].id < context->n_vocab) context->places[data[i].id] = (int32_t)i + 1;
    for (k = 0; k < count; k++) ids[k] = context->places[ids[k]] - 1;
    for (i = 0; i < size; i++)
        if (data[i].id >= 0 && data[i].id < context->n_vocab) context->places[data[i].id] = 0;
}

static void lz_penalty_llama__apply(struct llama_sampler *sampler, llama_token_data_array *logits)
{
    lz_penalty_llama *context = (lz_penalty_llama *)sampler->ctx;
    lz_penalty *p = context->stream->penalty;
    llama_token_data *data = logits->data;
    const int32_t count = lz_penalty_stream_candidates(context->stream, context->n_vocab);
    int32_t i;
    for (i = 0; i < count; i++) /* llama_sampler_sample has the logit of id a at a; other samplers may reorder */
        if ((size_t)p->ids[i] >= logits->size || data[p->ids[i]].id != p->ids[i]) break;
    if (i < count) lz_penalty_llama__find(context, count, data, logits->size);
    for (i = 0; i < count; i++) /* all are computed from the original logits, before the first is changed */
        if (p->ids[i] >= 0)
            p->values[i] = lz_penalty__moved(data[p->ids[i]].logit, p->settings.strength * (double)p->values[i]);
    for (i = 0; i < count; i++)
        if (p->ids[i] >= 0 && p->values[i] < data[p->ids[i]].logit) data[p->ids[i]].logit = p->values[i];
    if (count) logits->sorted = false;
}

static void lz_penalty_llama__accept(struct llama_sampler *sampler, llama_token token)
{
    lz_penalty_stream_accept(((lz_penalty_llama *)sampler->ctx)->stream, token);
}

static const char *lz_penalty_llama__name(const struct llama_sampler *sampler)
{
    (void)sampler;
    return "lz-penalty";
}

static void lz_penalty_llama__reset(struct llama_sampler *sampler)
{
    lz_penalty_stream_reset(((lz_penalty_llama *)sampler->ctx)->stream);
}

static void lz_penalty_llama__free(struct llama_sampler *sampler)
{
    lz_penalty_llama *context = (lz_penalty_llama *)sampler->ctx;
    free(context->places);
    free(context);
}

static void lz_penalty_llama__copy(const struct llama_sampler *from, struct llama_sampler *to)
{
    lz_penalty_stream_copy(((const lz_penalty_llama *)from->ctx)->stream, ((lz_penalty_llama *)to->ctx)->stream);
}

static inline struct llama_sampler *lz_penalty_llama_init(const lz_penalty_settings *s, int32_t n_vocab);

static struct llama_sampler *lz_penalty_llama__clone(const struct llama_sampler *sampler)
{
    const lz_penalty_llama *context = (const lz_penalty_llama *)sampler->ctx;
    struct llama_sampler *clone = lz_penalty_llama_init(&context->stream->penalty->settings, context->n_vocab);
    if (clone) lz_penalty_llama__copy(sampler, clone);
    return clone;
}

/* Return a new sampler; NULL if the settings are malformed (lz_penalty_check says why) or memory is short. */
static inline struct llama_sampler *lz_penalty_llama_init(const lz_penalty_settings *s, int32_t n_vocab)
{
    static struct llama_sampler_i functions = {
        lz_penalty_llama__name, lz_penalty_llama__accept, lz_penalty_llama__apply, lz_penalty_llama__reset,
        lz_penalty_llama__clone, lz_penalty_llama__free, NULL, NULL, NULL, NULL, NULL, lz_penalty_llama__copy,
    };
    lz_penalty_llama *context = lz_penalty_llama_context(s, n_vocab);
    return context ? llama_sampler_init(&functions, context) : NULL;
}

#endif
