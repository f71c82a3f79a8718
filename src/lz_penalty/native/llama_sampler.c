/* lz_penalty_llama.h as a shared library for a llama.cpp that is already loaded, without its headers.
 *
 * The declarations below are llama.cpp's interface as of llama-cpp-python 0.3.36. `lz_penalty_llama_abi` gives the caller
 * their layout, to be compared with the loaded library before any function is called. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int32_t llama_token;

typedef struct llama_token_data {
    llama_token id;
    float logit, p;
} llama_token_data;

typedef struct llama_token_data_array {
    llama_token_data *data;
    size_t size;
    int64_t selected;
    bool sorted;
} llama_token_data_array;

struct llama_sampler;

struct llama_sampler_i {
    const char *(*name)(const struct llama_sampler *);
    void (*accept)(struct llama_sampler *, llama_token);
    void (*apply)(struct llama_sampler *, llama_token_data_array *);
    void (*reset)(struct llama_sampler *);
    struct llama_sampler *(*clone)(const struct llama_sampler *);
    void (*free)(struct llama_sampler *);
    bool (*backend_init)(struct llama_sampler *, void *, uint32_t);
    void (*backend_accept)(struct llama_sampler *, void *, void *, void *);
    void (*backend_apply)(struct llama_sampler *, void *, void *, void *);
    void (*backend_set_input)(struct llama_sampler *);
    void (*backend_reset)(struct llama_sampler *);
    void (*copy_state)(const struct llama_sampler *, struct llama_sampler *);
};

struct llama_sampler {
    struct llama_sampler_i *iface;
    void *ctx;
};

static struct llama_sampler *(*llama_sampler_init)(struct llama_sampler_i *, void *); /* of the loaded llama.cpp */

#include "lz_penalty_llama.h"

/* Write sizes and offsets, in the order that lz_penalty.engines.llama_cpp._sampler expects. */
void lz_penalty_llama_abi(size_t *out)
{
    out[0] = sizeof(struct llama_sampler_i);
    out[1] = offsetof(struct llama_sampler_i, copy_state);
    out[2] = sizeof(struct llama_sampler);
    out[3] = sizeof(llama_token_data);
    out[4] = offsetof(llama_token_data, logit);
    out[5] = sizeof(llama_token_data_array);
    out[6] = offsetof(llama_token_data_array, sorted);
}

void *lz_penalty_llama_new(void *sampler_init, const lz_penalty_settings *s, int32_t n_vocab)
{
    llama_sampler_init = (struct llama_sampler * (*)(struct llama_sampler_i *, void *)) sampler_init;
    return lz_penalty_llama_init(s, n_vocab);
}
