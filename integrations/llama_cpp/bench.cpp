// Time per token of the LZ and the DRY sampler: `bench MODEL TOKENS WINDOW ROUNDS CANDIDATES`.
//
// TOKENS is a file of ids. Each sampler accepts the text up to the last ROUNDS tokens. Then, for each of these, it is
// applied to CANDIDATES logits (0: to the whole vocabulary, in order) and accepts the token. The samplers take turns.
// Prints a line for each sampler: its name, then the mean in microseconds, without the slowest tenth: other programs may
// have interrupted those. It is not the median, because DRY does nothing right after one of its breakers.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "llama.h"
#include "lz_penalty_llama.h"

struct contender {
    std::string name;
    llama_sampler * sampler;
    std::vector<double> times;
};

static lz_penalty_settings paper(int window) {
    lz_penalty_settings settings = lz_penalty_defaults();
    settings.window_size = window;
    return settings;
}

static lz_penalty_settings sglang(int window) {
    lz_penalty_settings settings = paper(window);
    settings.formula = LZ_PENALTY_SGLANG;
    settings.lookback = LZ_PENALTY_ADJACENT;
    return settings;
}

static lz_penalty_settings guarded(int window) {
    lz_penalty_settings settings = lz_penalty_guarded();
    settings.window_size = window;
    return settings;
}

int main(int count, char ** arguments) {
    if (count != 6) return 2;
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_model_params how = llama_model_default_params();
    how.vocab_only = true;
    llama_model * model = llama_model_load_from_file(arguments[1], how);
    if (!model) return 3;
    const llama_vocab * vocab = llama_model_get_vocab(model);
    const int n_vocab = llama_vocab_n_tokens(vocab), window = std::atoi(arguments[3]);
    const size_t rounds = (size_t) std::atoi(arguments[4]), candidates = (size_t) std::atoi(arguments[5]);
    std::ifstream file(arguments[2]);
    std::vector<llama_token> tokens;
    for (llama_token token; file >> token;) tokens.push_back(token);
    if (tokens.size() < (size_t) window + 128 + rounds) return 4; // the window would not be full

    const char * breakers[] = {"\n", ":", "\"", "*"}; // llama.cpp's defaults
    const lz_penalty_settings settings[] = {paper(window), sglang(window), guarded(window)};
    std::vector<contender> all = {
        {"DRY", llama_sampler_init_dry(vocab, 0.8f, 1.75f, 2, window, breakers, 4), {}},
        {"LZ paper", lz_penalty_llama_init(&settings[0], n_vocab), {}},
        {"LZ sglang", lz_penalty_llama_init(&settings[1], n_vocab), {}},
        {"LZ guarded", lz_penalty_llama_init(&settings[2], n_vocab), {}},
    };
    std::mt19937 random(0);
    std::normal_distribution<float> normal;
    std::vector<llama_token_data> logits((size_t) n_vocab);
    for (int id = 0; id < n_vocab; id++) logits[(size_t) id] = {id, normal(random), 0.0f};
    if (candidates) { // as after top-k: few, the largest first
        std::sort(logits.begin(), logits.end(), [](auto & a, auto & b) { return a.logit > b.logit; });
        logits.resize(std::min(candidates, logits.size()));
    }
    for (size_t i = 0; i + rounds < tokens.size(); i++)
        for (auto & one : all) llama_sampler_accept(one.sampler, tokens[i]);

    std::vector<llama_token_data> data;
    for (size_t i = tokens.size() - rounds; i < tokens.size(); i++) {
        for (auto & one : all) {
            data = logits;
            llama_token_data_array array = {data.data(), data.size(), -1, false};
            const auto begin = std::chrono::steady_clock::now();
            llama_sampler_apply(one.sampler, &array);
            llama_sampler_accept(one.sampler, tokens[i]);
            one.times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
        }
    }
    for (auto & one : all) {
        one.times.erase(one.times.begin(), one.times.begin() + 5); // to warm up; the first builds the index
        std::sort(one.times.begin(), one.times.end());
        one.times.resize(one.times.size() * 9 / 10);
        double sum = 0;
        for (double time : one.times) sum += time;
        std::printf("%s,%.2f\n", one.name.c_str(), sum / (double) one.times.size());
        llama_sampler_free(one.sampler);
    }
    llama_model_free(model);
}
