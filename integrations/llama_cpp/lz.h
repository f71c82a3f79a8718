#pragma once

#include "json.h"
#include "llama.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// LZ penalty: charge a token by the bits that it saves when the text is compressed (https://arxiv.org/abs/2504.20131)
// the names are those of the lz_* request fields, -1 is "none"
struct common_params_lz {
    double  penalty          = 0.0;   // logits per bit of codelength, 0.0 = disabled
    int32_t window_size      = 512;   // how many past tokens to search
    int32_t buffer_size      = 32;    // longest match to look for
    int32_t formula          = 0;     // 0 = paper, 1 = sglang
    int32_t lookback         = -1;    // 0 = before_buffer, 1 = adjacent, -1 = follow the formula
    int32_t min_match_length = 1;     // a shorter copy costs as much as new text, -1 = no codelengths, escalation only
    double  escalation       = 0.0;   // extra bits against a loop, more with every copy, 0.0 = disabled
    int32_t loop_window      = 4096;  // how many past tokens to search for loops
    double  gate_low         = -1.0;  // charge nothing up to this share of copied tokens, -1.0 = no gate
    double  gate_high        = -1.0;  // charge everything from this share on, -1.0 = no gate
    int32_t gate_window      = 96;    // how many past tokens the share is taken from
    int32_t gate_from        = -1;    // the gate is closed with fewer tokens, -1 = half of gate_window
    int32_t include_prompt   = 1;     // 0 = only generated tokens count

    std::vector<llama_token> exempt_token_ids; // never penalized, besides the special tokens of the model

    std::map<std::string, std::string> args; // command line options, by request field
};

// evaluate the command line options, throw std::invalid_argument if one is bad
void common_lz_eval_args(common_params_lz & lz);

// evaluate the lz_* fields of a request, throw std::invalid_argument if one is bad
common_params_lz common_lz_eval_fields(const common_params_lz & defaults, const common_json & fields);

// the settings as lz_* fields
common_json common_lz_to_json(const common_params_lz & lz);

llama_sampler * common_lz_init(const llama_model * model, const common_params_lz & lz);
