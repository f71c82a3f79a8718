#include "lz.h"

#include "common.h"

#include <lz-penalty/lz_penalty_llama.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

// a field holds one of: a number, an integer, one of two words
struct lz_field {
    const char * name;
    double       min;
    double       max;
    bool         none;     // "none" is allowed
    double  common_params_lz::* num;
    int32_t common_params_lz::* val;
    const char * words[2]; // val is the index
};

static const lz_field lz_fields[] = {
    // name                  min  max    none
    { "lz_penalty",          0,   100,   false, &common_params_lz::penalty,    nullptr, {} },
    { "lz_window_size",      1,   65536, false, nullptr, &common_params_lz::window_size,      {} },
    { "lz_buffer_size",      1,   4096,  false, nullptr, &common_params_lz::buffer_size,      {} },
    { "lz_formula",          0,   1,     false, nullptr, &common_params_lz::formula,          { "paper", "sglang" } },
    { "lz_lookback",         0,   1,     true,  nullptr, &common_params_lz::lookback,         { "before_buffer", "adjacent" } },
    { "lz_min_match_length", 1,   4097,  true,  nullptr, &common_params_lz::min_match_length, {} },
    { "lz_escalation",       0,   100,   false, &common_params_lz::escalation, nullptr, {} },
    { "lz_loop_window",      1,   65536, false, nullptr, &common_params_lz::loop_window,      {} },
    { "lz_gate_low",         0,   1,     true,  &common_params_lz::gate_low,   nullptr, {} },
    { "lz_gate_high",        0,   1,     true,  &common_params_lz::gate_high,  nullptr, {} },
    { "lz_gate_window",      4,   4096,  false, nullptr, &common_params_lz::gate_window,      {} },
    { "lz_gate_from",        1,   4096,  true,  nullptr, &common_params_lz::gate_from,        {} },
    { "lz_include_prompt",   0,   1,     false, nullptr, &common_params_lz::include_prompt,   { "false", "true" } },
};

static const size_t LZ_MAX_EXEMPT  = 1024; // token ids in a request
static const size_t LZ_MAX_SPECIAL = 1023; // special tokens of the model

static const char * LZ_PRESETS = "'paper', 'sglang', 'guarded', 'failsafe'";

static std::invalid_argument lz_error(const std::string & name, const common_json & val, const std::string & allowed) {
    std::string given = val.dump_safe();
    if (given.size() > 60) {
        given = given.substr(0, 57) + "...";
    }
    return std::invalid_argument(name + " = " + given + ": must be " + allowed);
}

static common_params_lz lz_preset(const common_json & val) {
    const std::string name = val.is_string() ? val.get<std::string>() : "";

    common_params_lz lz;
    lz.penalty = 0.15;
    if (name == "paper") {
        return lz;
    }
    if (name == "sglang") {
        lz.formula        = 1;
        lz.include_prompt = 0;
        return lz;
    }
    if (name == "guarded") {
        lz.penalty          = 0.4;
        lz.window_size      = 384;
        lz.lookback         = 1;
        lz.min_match_length = 4;
        lz.escalation       = 1.0;
        lz.gate_low         = 0.4;
        lz.gate_high        = 0.5;
        lz.gate_window      = 384;
        lz.gate_from        = 48;
        lz.include_prompt   = 0;
        return lz;
    }
    if (name == "failsafe") {
        lz.min_match_length = -1;
        lz.escalation       = 1.0;
        return lz;
    }
    throw lz_error("lz_preset", val, std::string("one of ") + LZ_PRESETS);
}

static void lz_set(common_params_lz & lz, const lz_field & field, const common_json & val) {
    const std::string none = field.none ? " or 'none'" : "";

    if (field.none && (val.is_null() || (val.is_string() && val.get<std::string>() == "none"))) {
        if (field.num) {
            lz.*field.num = -1.0;
        } else {
            lz.*field.val = -1;
        }
        return;
    }
    if (field.words[0] && std::strcmp(field.words[0], "false") == 0) { // a flag
        if (val.is_boolean()) {
            lz.*field.val = val.get<bool>();
            return;
        }
        if (!val.is_number_integer() || (val.get<double>() != 0.0 && val.get<double>() != 1.0)) {
            throw lz_error(field.name, val, "true or false");
        }
        lz.*field.val = val.get<int>();
        return;
    }
    if (field.words[0]) {
        const std::string word = val.is_string() ? val.get<std::string>() : "";
        for (int i = 0; i < 2; i++) {
            if (word == field.words[i]) {
                lz.*field.val = i;
                return;
            }
        }
        throw lz_error(field.name, val, string_format("one of '%s', '%s'%s", field.words[0], field.words[1], none.c_str()));
    }
    const double num = val.is_number() ? val.get<double>() : std::nan("");
    if (field.num) {
        if (!(num >= field.min && num <= field.max)) {
            throw lz_error(field.name, val, string_format("a finite number from %g to %g%s", field.min, field.max, none.c_str()));
        }
        lz.*field.num = num;
        return;
    }
    if (!val.is_number_integer() || !(num >= field.min && num <= field.max)) {
        throw lz_error(field.name, val, string_format("an integer from %.0f to %.0f%s", field.min, field.max, none.c_str()));
    }
    lz.*field.val = (int32_t) num;
}

static void lz_set_exempt(common_params_lz & lz, const common_json & val) {
    const double max = std::numeric_limits<llama_token>::max();
    const std::string allowed = string_format("at most %zu integers from 0 to %.0f", LZ_MAX_EXEMPT, max);

    if (!val.is_array() || val.size() > LZ_MAX_EXEMPT) {
        throw lz_error("lz_exempt_token_ids", val, allowed);
    }
    lz.exempt_token_ids.clear();
    for (size_t i = 0; i < val.size(); i++) {
        const common_json & id = val.at(i);
        if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() > max) {
            throw lz_error("lz_exempt_token_ids", id, allowed);
        }
        lz.exempt_token_ids.push_back((llama_token) id.get<double>());
    }
}

// the settings depend on each other
static void lz_check(const common_params_lz & lz) {
    if (lz.min_match_length > lz.buffer_size + 1) {
        throw lz_error("lz_min_match_length", lz.min_match_length,
            string_format("at most lz_buffer_size + 1 = %d, the length of the longest copy", lz.buffer_size + 1));
    }
    if ((lz.gate_low < 0) != (lz.gate_high < 0)) {
        const bool low = lz.gate_low >= 0;
        throw lz_error(low ? "lz_gate_low" : "lz_gate_high", low ? lz.gate_low : lz.gate_high,
            std::string("given together with ") + (low ? "lz_gate_high" : "lz_gate_low") + ", or not at all");
    }
    if (lz.gate_low >= 0 && lz.gate_low >= lz.gate_high) {
        throw lz_error("lz_gate_low", lz.gate_low, string_format("below lz_gate_high = %g", lz.gate_high));
    }
    if (lz.gate_low >= 0 && lz.min_match_length < 0) {
        throw lz_error("lz_min_match_length", "none", "an integer with a gate, which needs codelengths");
    }
    if (lz.formula == 1 && lz.lookback == 0) {
        throw lz_error("lz_lookback", "before_buffer", "'adjacent' or 'none' with lz_formula = 'sglang'");
    }
    if (lz.formula == 1 && lz.min_match_length != 1) {
        throw lz_error("lz_min_match_length", lz.min_match_length, "1 with lz_formula = 'sglang'");
    }
}

common_params_lz common_lz_eval_fields(const common_params_lz & defaults, const common_json & fields) {
    std::string given;
    for (const auto & [key, val] : fields.items()) {
        if (key.rfind("lz_", 0) != 0) {
            continue;
        }
        std::string known = "lz_preset, lz_exempt_token_ids";
        bool found = key == "lz_preset" || key == "lz_exempt_token_ids";
        for (const auto & field : lz_fields) {
            found = found || key == field.name;
            known = known + ", " + field.name;
        }
        if (!found) {
            throw std::invalid_argument(key.substr(0, 60) + ": unknown field. Known: " + known);
        }
        given += (given.empty() ? "" : ", ") + key;
    }
    if (given.empty()) {
        return defaults;
    }
    if (!fields.contains("lz_preset") && !fields.contains("lz_penalty") && defaults.penalty == 0.0) {
        throw std::invalid_argument(given + ": given without lz_penalty or lz_preset, and there is no server default to refine. "
            "Add lz_penalty (for example 0.15) or lz_preset");
    }

    common_params_lz lz = defaults;
    if (fields.contains("lz_preset")) {
        lz = lz_preset(fields.at("lz_preset"));
    } else if (defaults.penalty == 0.0) {
        lz = lz_preset("paper"); // lz_penalty is given
    }
    for (const auto & field : lz_fields) {
        if (fields.contains(field.name)) {
            lz_set(lz, field, fields.at(field.name));
        }
    }
    if (fields.contains("lz_exempt_token_ids")) {
        lz_set_exempt(lz, fields.at("lz_exempt_token_ids"));
    }
    lz_check(lz);
    return lz;
}

void common_lz_eval_args(common_params_lz & lz) {
    common_json fields = common_json::object();
    for (const auto & arg : lz.args) {
        const bool  ids = arg.first == "lz_exempt_token_ids";
        common_json val = common_json::parse_no_throw(ids ? "[" + arg.second + "]" : arg.second);
        if (val.is_discarded()) {
            val = arg.second; // a word
        }
        fields[arg.first] = val;
    }
    lz = common_lz_eval_fields(common_params_lz(), fields);
}

common_json common_lz_to_json(const common_params_lz & lz) {
    common_json res = common_json::object();
    for (const auto & field : lz_fields) {
        if ((field.num && lz.*field.num < 0) || (field.val && lz.*field.val < 0)) {
            res[field.name] = "none";
        } else if (field.num) {
            res[field.name] = lz.*field.num;
        } else if (field.words[0]) {
            res[field.name] = field.words[lz.*field.val];
        } else {
            res[field.name] = lz.*field.val;
        }
    }
    res["lz_include_prompt"]   = lz.include_prompt != 0;
    res["lz_exempt_token_ids"] = lz.exempt_token_ids;
    return res;
}

// <...> or [...] that is part of the chat template or is about thinking
static bool lz_is_marker(const std::string & text, const std::string & tmpl) {
    if (text.size() < 3 || !((text.front() == '<' && text.back() == '>') || (text.front() == '[' && text.back() == ']'))) {
        return false;
    }
    std::string lower = text;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return (char) std::tolower(c); });
    return tmpl.find(text) != std::string::npos ||
        lower.find("think")   != std::string::npos ||
        lower.find("thought") != std::string::npos ||
        lower.find("reason")  != std::string::npos;
}

// tokens that structure a conversation: they repeat legitimately, and a model that is penalized for them cannot stop
static std::vector<llama_token> lz_special_tokens(const llama_model * model) {
    const llama_vocab * vocab = llama_model_get_vocab(model);
    const char *        tmpl  = llama_model_chat_template(model, nullptr);

    std::vector<llama_token> res;
    std::vector<llama_token> others;
    for (llama_token id = 0; id < llama_vocab_n_tokens(vocab); id++) {
        const llama_token_attr attr = llama_vocab_get_attr(vocab, id);
        if (llama_vocab_is_eog(vocab, id)) {
            res.push_back(id);
        } else if (attr & LLAMA_TOKEN_ATTR_CONTROL) {
            others.push_back(id);
        } else if ((attr & LLAMA_TOKEN_ATTR_USER_DEFINED) && lz_is_marker(llama_vocab_get_text(vocab, id), tmpl ? tmpl : "")) {
            others.push_back(id);
        }
    }
    res.insert(res.end(), others.begin(), others.end());
    res.resize(std::min(res.size(), LZ_MAX_SPECIAL));
    return res;
}

llama_sampler * common_lz_init(const llama_model * model, const common_params_lz & lz) {
    std::vector<llama_token> exempt = lz_special_tokens(model);
    exempt.insert(exempt.end(), lz.exempt_token_ids.begin(), lz.exempt_token_ids.end());
    std::sort(exempt.begin(), exempt.end());
    exempt.erase(std::unique(exempt.begin(), exempt.end()), exempt.end());

    lz_penalty_settings settings = lz_penalty_defaults();
    settings.strength         = lz.penalty;
    settings.escalation       = lz.escalation;
    settings.formula          = lz.formula;
    settings.lookback         = lz.lookback < 0 ? lz.formula : lz.lookback;
    settings.window_size      = lz.window_size;
    settings.buffer_size      = lz.buffer_size;
    settings.min_match_length = std::max(lz.min_match_length, 0);
    settings.loop_window      = lz.loop_window;
    if (lz.gate_low >= 0) {
        settings.gate_low    = lz.gate_low;
        settings.gate_high   = lz.gate_high;
        settings.gate_window = lz.gate_window;
        settings.gate_from   = std::max(lz.gate_from, 0);
    }
    settings.exempt_ids   = exempt.data();
    settings.exempt_count = (int32_t) exempt.size();

    llama_sampler * res = lz_penalty_llama_init(&settings, llama_vocab_n_tokens(llama_model_get_vocab(model)));
    if (!res) {
        throw std::runtime_error(std::string("failed to create the LZ sampler: ") + lz_penalty_error(lz_penalty_check(&settings)));
    }
    return res;
}
