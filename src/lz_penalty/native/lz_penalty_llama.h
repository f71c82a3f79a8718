/* The LZ penalty as a sampler of llama.cpp, on top of lz_penalty.h. Include llama.h first.
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

#include "lz_penalty.h"

typedef struct {
    int32_t id;
    float value;
} lz_penalty_llama_pair;

typedef struct {
    lz_penalty *penalty;
    lz_penalty_llama_pair *pairs; /* candidates in order of their ids, for logits that are not */
    int32_t *tokens;              /* the last accepted tokens, oldest first */
    size_t n_tokens, capacity, reach;
    int32_t n_vocab;
} lz_penalty_llama;

static inline lz_penalty_llama *lz_penalty_llama_context(const lz_penalty_settings *s, int32_t n_vocab)
{
    const size_t penalty_size = (lz_penalty_size(s) + 15) / 16 * 16, header = (sizeof(lz_penalty_llama) + 15) / 16 * 16;
    size_t pairs, reach;
    char *memory;
    lz_penalty_llama *context;
    if (!penalty_size || n_vocab < 1) return NULL;
    reach = (size_t)lz_penalty__max(s->gate_window + s->window_size + s->buffer_size, s->loop_window);
    pairs = (size_t)s->window_size + 1;
    memory = (char *)malloc(header + penalty_size + pairs * sizeof(lz_penalty_llama_pair) + 2 * reach * sizeof(int32_t));
    if (!memory) return NULL;
    context = (lz_penalty_llama *)memory;
    context->pairs = (lz_penalty_llama_pair *)(memory + header + penalty_size);
    context->tokens = (int32_t *)(context->pairs + pairs);
    context->n_tokens = 0;
    context->reach = reach;
    context->capacity = 2 * reach;
    context->n_vocab = n_vocab;
    if (lz_penalty_init(memory + header, penalty_size, s, &context->penalty) == LZ_PENALTY_OK) return context;
    free(memory);
    return NULL;
}

static inline int lz_penalty_llama__by_id(const void *a, const void *b)
{
    const lz_penalty_llama_pair *x = (const lz_penalty_llama_pair *)a, *y = (const lz_penalty_llama_pair *)b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* Change logits that are in any order, perhaps without some ids: look each up among the candidates. */
static inline void lz_penalty_llama__lookup(lz_penalty_llama *context, int32_t count, llama_token_data *data, size_t size)
{
    const lz_penalty *p = context->penalty;
    lz_penalty_llama_pair *pairs = context->pairs;
    size_t i;
    int32_t k;
    for (k = 0; k < count; k++) {
        pairs[k].id = p->ids[k];
        pairs[k].value = p->values[k];
    }
    qsort(pairs, (size_t)count, sizeof *pairs, lz_penalty_llama__by_id);
    for (i = 0; i < size; i++) {
        int32_t low = 0, high = count;
        while (low < high) { /* the first pair of this id has its smallest value */
            const int32_t middle = low + (high - low) / 2;
            if (pairs[middle].id < data[i].id) low = middle + 1;
            else high = middle;
        }
        if (low < count && pairs[low].id == data[i].id)
            data[i].logit = lz_penalty__moved(data[i].logit, p->settings.strength * (double)pairs[low].value);
    }
}

static void lz_penalty_llama__apply(struct llama_sampler *sampler, llama_token_data_array *logits)
{
    lz_penalty_llama *context = (lz_penalty_llama *)sampler->ctx;
    lz_penalty *p = context->penalty;
    llama_token_data *data = logits->data;
    int32_t count, i;
    if (!context->n_tokens || !logits->size) return;
    count = lz_penalty_candidates(p, context->n_vocab, context->tokens, context->n_tokens);
    for (i = 0; i < count; i++) { /* as llama_sampler_sample orders them: the logit of id a is at a */
        const int32_t id = p->ids[i];
        if ((size_t)id >= logits->size || data[id].id != id) break;
        p->values[i] = lz_penalty__moved(data[id].logit, p->settings.strength * (double)p->values[i]);
    }
    if (i < count) { /* in another order: compute the values again, which were overwritten */
        count = lz_penalty_candidates(p, context->n_vocab, context->tokens, context->n_tokens);
        lz_penalty_llama__lookup(context, count, data, logits->size);
    } else {
        for (i = 0; i < count; i++)
            if (p->values[i] < data[p->ids[i]].logit) data[p->ids[i]].logit = p->values[i];
    }
    if (count) logits->sorted = false;
}

static void lz_penalty_llama__accept(struct llama_sampler *sampler, llama_token token)
{
    lz_penalty_llama *context = (lz_penalty_llama *)sampler->ctx;
    if (context->n_tokens == context->capacity) { /* keep the tokens within reach; this is rare, so a token costs little */
        memcpy(context->tokens, context->tokens + context->reach, context->reach * sizeof(int32_t));
        context->n_tokens = context->reach;
    }
    context->tokens[context->n_tokens++] = token;
}

static const char *lz_penalty_llama__name(const struct llama_sampler *sampler)
{
    (void)sampler;
    return "lz-penalty";
}

static void lz_penalty_llama__reset(struct llama_sampler *sampler) { ((lz_penalty_llama *)sampler->ctx)->n_tokens = 0; }
static void lz_penalty_llama__free(struct llama_sampler *sampler) { free(sampler->ctx); }

static void lz_penalty_llama__copy(const struct llama_sampler *from, struct llama_sampler *to)
{
    const lz_penalty_llama *source = (const lz_penalty_llama *)from->ctx;
    lz_penalty_llama *target = (lz_penalty_llama *)to->ctx;
    const size_t n = source->n_tokens < target->capacity ? source->n_tokens : target->capacity;
    memcpy(target->tokens, source->tokens + (source->n_tokens - n), n * sizeof(int32_t));
    target->n_tokens = n;
}

static inline struct llama_sampler *lz_penalty_llama_init(const lz_penalty_settings *s, int32_t n_vocab);

static struct llama_sampler *lz_penalty_llama__clone(const struct llama_sampler *sampler)
{
    const lz_penalty_llama *context = (const lz_penalty_llama *)sampler->ctx;
    struct llama_sampler *clone = lz_penalty_llama_init(&context->penalty->settings, context->n_vocab);
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
