// Greedy decoding with lz_penalty_llama.h, as a C++ program would have it: `decode MODEL NEW EXEMPT PROMPT`, lists of ids with commas.
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"
#include "lz_penalty_llama.h"

static std::vector<llama_token> ids(const char * text) {
    std::vector<llama_token> out;
    std::istringstream all(text);
    for (std::string one; std::getline(all, one, ',');) out.push_back(std::stoi(one));
    return out;
}

int main(int count, char ** arguments) {
    if (count != 5) return 2;
    std::vector<llama_token> exempt = ids(arguments[3]), tokens = ids(arguments[4]);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_model * model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    llama_context_params how = llama_context_default_params();
    how.n_ctx = 1024;
    how.n_threads = how.n_threads_batch = 1;
    how.type_k = how.type_v = GGML_TYPE_F32;
    llama_context * context = model ? llama_init_from_model(model, how) : nullptr;
    if (!context) return 3;
    const llama_vocab * vocab = llama_model_get_vocab(model);

    lz_penalty_settings settings = lz_penalty_defaults(); // PRESETS["guarded"] of tests/support/greedy.py
    settings.strength = 0.3;
    settings.window_size = 384;
    settings.lookback = LZ_PENALTY_ADJACENT;
    settings.min_match_length = 3;
    settings.escalation = 1;
    settings.exempt_ids = exempt.data();
    settings.exempt_count = (int32_t) exempt.size();
    llama_sampler * penalty = lz_penalty_llama_init(&settings, llama_vocab_n_tokens(vocab));
    settings.window_size = 0;
    if (!penalty || lz_penalty_llama_init(&settings, llama_vocab_n_tokens(vocab))) return 4; // malformed: no sampler
    for (llama_token token : tokens) llama_sampler_accept(penalty, token);
    llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, penalty);
    llama_sampler_chain_add(chain, llama_sampler_init_greedy());

    for (int left = std::atoi(arguments[2]); left > 0; left--) {
        if (llama_decode(context, llama_batch_get_one(tokens.data(), (int32_t) tokens.size()))) return 5;
        tokens = {llama_sampler_sample(chain, context, -1)};
        std::printf("%d\n", tokens[0]);
        if (llama_vocab_is_eog(vocab, tokens[0])) break;
    }
    llama_sampler_free(chain);
    llama_free(context);
    llama_model_free(model);
}
