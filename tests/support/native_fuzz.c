/* Generated cases for lz_penalty.h under AddressSanitizer and UBSan: `make fuzz-native`.
 *
 * Memory is allocated to the byte, so that every access outside is found. Each result is compared with the definition,
 * written here as plain quadratic loops; malformed settings must give a code and change nothing. */
#include <stdio.h>
#include <stdlib.h>

#include "lz_penalty_stream.h"

static uint64_t state;
static long partly_open; /* gates, for contexts that were checked */

static uint32_t random_bits(void) /* xorshift64* */
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 2685821657736338717u) >> 32);
}

static int32_t below(int32_t n) { return (int32_t)(random_bits() % (uint32_t)n); }
static int32_t between(int32_t low, int32_t high) { return low + below(high - low + 1); }

static void fail(long number, const char *what)
{
    fprintf(stderr, "case %ld: %s\n", number, what);
    exit(1);
}

/* ---- cases */

static int32_t any_token(int32_t ids)
{
    static const int32_t odd[] = {-1, -7, 1000000, INT32_MAX, INT32_MIN};
    return below(25) ? below(ids) : odd[below(5)];
}

static void fill_tokens(int32_t *tokens, int32_t n, int32_t ids)
{
    int32_t i = 0, period, stretch;
    while (i < n) {
        period = between(1, 9);
        stretch = below(2) && i >= period ? between(1, 40) : 0; /* repeat the last `period` tokens, or news */
        if (!stretch) for (stretch = between(1, 6); stretch && i < n; stretch--) tokens[i++] = any_token(ids);
        else for (; stretch && i < n; stretch--, i++) tokens[i] = tokens[i - period];
    }
}

static float any_logit(void)
{
    static const float odd[] = {0.0f, -0.0f, FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, NAN};
    return below(8) ? (float)below(40000) / 1000 - 20 : odd[below(7)];
}

static int32_t any_size(int32_t usual, int32_t largest)
{
    return below(500) ? between(1, usual) : between(1, largest);
}

/* Often narrow, and often with a share that short texts have, so that many gates are open in part. */
static void any_gate(lz_penalty_settings *s)
{
    static const double lows[] = {0, 0, 0.25, 0.5, 0.9};
    s->gate_low = lows[below(5)];
    s->gate_high = below(4) ? s->gate_low + (1 - s->gate_low) * between(1, 100) / 100 : nextafter(s->gate_low, 1);
    s->gate_window = below(500) ? between(4, 40) : between(4, LZ_PENALTY_MAX_GATE_WINDOW);
    if (below(2)) s->window_size = between(1, 9); /* as the periods: the edge of the window matters */
}

static lz_penalty_settings any_settings(int32_t *exempt, int32_t ids)
{
    static const double strengths[] = {0, 0.15, 1, 30, 100}, escalations[] = {0, 0.5, 1, 20, 100};
    lz_penalty_settings s = lz_penalty_defaults();
    int32_t next = 0;
    s.strength = strengths[below(5)];
    s.escalation = escalations[below(5)];
    s.formula = below(3) == 0;
    s.lookback = s.formula || below(2);
    s.window_size = any_size(40, LZ_PENALTY_MAX_WINDOW);
    s.buffer_size = any_size(9, LZ_PENALTY_MAX_BUFFER);
    s.min_match_length = s.formula || below(2) ? 1 : below(s.buffer_size + 2);
    s.loop_window = any_size(80, LZ_PENALTY_MAX_WINDOW);
    if (s.min_match_length && below(2)) any_gate(&s);
    s.exempt_ids = exempt;
    for (s.exempt_count = 0; s.exempt_count < 4 && below(2); s.exempt_count++) {
        exempt[s.exempt_count] = next + below(ids);
        next = exempt[s.exempt_count] + 1;
    }
    return s;
}

static void spoil_gate(lz_penalty_settings *s)
{
    static const int32_t odd[] = {-1, 1, 3, LZ_PENALTY_MAX_GATE_WINDOW + 1, INT32_MIN, INT32_MAX};
    s->min_match_length = 1;
    any_gate(s);
    switch (below(6)) {
    case 0: s->gate_low = below(2) ? NAN : -0.01; break;
    case 1: s->gate_high = below(2) ? NAN : 1.01; break;
    case 2: s->gate_low = s->gate_high; break;
    case 3: s->gate_low = 1, s->gate_high = below(2) ? 0 : INFINITY; break;
    case 4: s->formula = LZ_PENALTY_PAPER, s->min_match_length = 0; break;
    default: s->gate_window = odd[below(6)]; break;
    }
}

static void spoil(lz_penalty_settings *s)
{
    static const int32_t odd[] = {-1, INT32_MIN, INT32_MAX, 70000};
    int32_t value = odd[below(4)];
    switch (below(10)) {
    case 0: s->strength = below(2) ? NAN : -1; break;
    case 1: s->escalation = below(2) ? INFINITY : 101; break;
    case 2: s->formula = value; break;
    case 3: s->lookback = value; break;
    case 4: s->window_size = value; break;
    case 5: s->buffer_size = value; break;
    case 6: s->min_match_length = value; break;
    case 7: s->loop_window = below(2) ? 0 : value; break;
    case 8: spoil_gate(s); break;
    default: s->exempt_count = value; break;
    }
}

/* ---- the definition */

static double loop_bits(const lz_penalty_settings *s, const int32_t *end, int32_t n, double literal, int32_t *token)
{
    int32_t period = 0, longest = 0, p, run;
    n = lz_penalty__min(n, s->loop_window);
    for (p = 1; p < n; p++) {
        for (run = 0; run + p < n && end[-1 - run] == end[-1 - run - p]; run++) {}
        if (!period || (int64_t)run * period > (int64_t)longest * p) period = p, longest = run;
    }
    if (!period || longest < 2 * period || s->escalation == 0) return 0;
    *token = end[-period];
    return s->escalation * (literal + 1) * ((double)longest / period - 1);
}

static int32_t match_at(const lz_penalty_settings *s, const int32_t *end, int32_t seen, int32_t source)
{
    int32_t m = 0;
    while (m < s->buffer_size && source + m < seen && end[-1 - m] == end[-1 - source - m]) m++;
    return m;
}

static int is_copied(const lz_penalty_settings *s, const int32_t *tokens, int32_t i)
{
    int32_t size = lz_penalty__max(2, s->min_match_length), j, k;
    for (j = i - 1; j >= size - 1 && i - j <= s->window_size; j--) {
        for (k = 0; k < size && tokens[j - k] == tokens[i - k]; k++) {}
        if (k == size) return 1;
    }
    return 0;
}

static double opening_of(const lz_penalty_settings *s, const int32_t *tokens, int32_t n)
{
    int32_t recent = lz_penalty__min(n, s->gate_window), copied = 0, i;
    if (!s->gate_window) return 1;
    if (2 * n < s->gate_window) return 0;
    for (i = n - recent; i < n; i++) copied += is_copied(s, tokens, i);
    return fmin(1, fmax(0, ((double)copied / recent - s->gate_low) / (s->gate_high - s->gate_low)));
}

static void define(const lz_penalty_settings *s, double *bits, int32_t vocab, const int32_t *tokens, int32_t n)
{
    const int32_t *end = tokens + n;
    int before = s->lookback == LZ_PENALTY_BEFORE_BUFFER, paper = s->formula == LZ_PENALTY_PAPER;
    int32_t offset = before ? s->buffer_size : 0, seen = lz_penalty__min(n, offset + s->window_size);
    int32_t longest = 0, e, i, m, loop_token = -1, last = seen - offset - (paper ? 0 : s->buffer_size);
    double literal = log2(vocab), opening = opening_of(s, tokens, n), value, further;
    partly_open += opening > 0 && opening < 1;
    for (i = 0; i < vocab; i++) bits[i] = 0;
    for (e = before ? 0 : 1; e <= seen - offset; e++) longest = lz_penalty__max(longest, match_at(s, end, seen, offset + e));
    for (e = 1; s->min_match_length && e <= last; e++) {
        int32_t token = end[-offset - e];
        if (token < 0 || token >= vocab) continue;
        m = match_at(s, end, seen, offset + e);
        value = !paper ? (log2(e + 1) + log2(m + 1)) / (m + 1) : s->min_match_length == 1 ? log2(e) : literal;
        if (paper && m == longest && longest && longest + 1 >= s->min_match_length && !(before && e < 2)) {
            double grown = before ? log2(1 + (e - 1.0) / ((double)longest * (e + longest))) - 1
                                  : log2((longest + 1.0) / longest) - 1;
            if (grown < value) value = grown;
        }
        if (opening * (value - literal) < bits[token]) bits[token] = opening * (value - literal);
    }
    further = loop_bits(s, end, n, literal, &loop_token);
    if (loop_token >= 0 && loop_token < vocab) bits[loop_token] -= further;
    for (i = 0; i < s->exempt_count; i++) if (s->exempt_ids[i] < vocab) bits[s->exempt_ids[i]] = 0;
}

/* As tests/support/cases.py judges float32. */
static int right(float was, float now, double strength, double bits)
{
    double want = was + strength * bits, slack = 2e-6 * strength * fmax(fabs(bits), 17);
    if (!isfinite(was) || strength * bits == 0) return !memcmp(&was, &now, sizeof was);
    if (want < -(double)FLT_MAX) want = -(double)FLT_MAX;
    return isfinite(now) && fabs(now - want) <= 2.4e-7 * fmax(fabs(was), fabs(want)) + slack;
}

/* ---- a stream: exactly the values of a context, whatever was accepted, forgotten and copied before */

static void smallest(const lz_penalty *penalty, int32_t count, float *values, int32_t vocab)
{
    int32_t i;
    for (i = 0; i < vocab; i++) values[i] = 1;
    for (i = 0; i < count; i++)
        if (penalty->values[i] < values[penalty->ids[i]]) values[penalty->ids[i]] = penalty->values[i];
}

static void run_stream(long number, const lz_penalty_settings *s, lz_penalty *penalty, int32_t vocab, int32_t *tokens, int32_t n)
{
    const size_t size = lz_penalty_stream_size(s), width = sizeof(float) * (size_t)vocab;
    void *memory[2] = {malloc(size), malloc(size)};
    float *got = malloc(width), *want = malloc(width);
    lz_penalty_stream *streams[2] = {NULL, NULL};
    int32_t begin = 0, i, often = below(3) ? 1 : between(2, 50), now = 0;

    for (i = 0; i < 2; i++) {
        if (!lz_penalty_stream_init(memory[i], size - 1, s, &streams[i])) fail(number, "too little memory was accepted");
        if (lz_penalty_stream_init(memory[i], size, s, &streams[i])) fail(number, "good settings were refused");
    }
    if (lz_penalty_stream_candidates(streams[0], vocab)) fail(number, "candidates without a token");
    if (!below(20)) streams[0]->position = INT32_MAX - below(200); /* as after two thousand million tokens */
    for (i = 0; i < n; i++) {
        lz_penalty_stream_accept(streams[now], tokens[i]);
        if (below(often)) continue;
        smallest(penalty, lz_penalty_candidates(penalty, vocab, tokens + begin, (size_t)(i + 1 - begin)), want, vocab);
        smallest(streams[now]->penalty, lz_penalty_stream_candidates(streams[now], vocab), got, vocab);
        if (memcmp(got, want, width)) fail(number, "a stream is not equal to a context");
        if (!below(100)) {
            lz_penalty_stream_reset(streams[now]);
            begin = i + 1;
        } else if (!below(50)) {
            lz_penalty_stream_copy(streams[now], streams[!now]);
            now = !now;
        }
    }
    free(memory[0]);
    free(memory[1]);
    free(got);
    free(want);
}

/* ---- one case */

static void run_case(long number)
{
    static const int32_t vocabularies[] = {1, 2, 5, 30, 30, 300};
    const int32_t vocab = vocabularies[below(6)], n = below(100) ? below(90) : below(900), ids = between(1, vocab + 2);
    const size_t step = below(3) ? 1 : 3; /* alone, or a field of a structure of three */
    const size_t width = step * (size_t)(vocab - 1) + 1;
    int32_t exempt[4], *tokens = malloc(sizeof(int32_t) * (size_t)n + !n), i;
    float *logits = malloc(sizeof(float) * width), *before = malloc(sizeof(float) * width);
    double *bits = malloc(sizeof(double) * (size_t)vocab);
    lz_penalty_settings s = any_settings(exempt, ids);
    lz_penalty *penalty = NULL;
    size_t size, j;
    void *memory;

    fill_tokens(tokens, n, ids);
    for (j = 0; j < width; j++) logits[j] = any_logit();
    memcpy(before, logits, sizeof(float) * width);
    if (!below(10)) {
        spoil(&s);
        if (!lz_penalty_check(&s) || lz_penalty_size(&s)) fail(number, "malformed settings were accepted");
        if (!lz_penalty_init(bits, 8, &s, &penalty) || penalty) fail(number, "malformed settings made a context");
    } else {
        size = lz_penalty_size(&s);
        memory = malloc(size);
        if (!lz_penalty_init(memory, size - 1, &s, &penalty)) fail(number, "too little memory was accepted");
        if (lz_penalty_init(memory, size, &s, &penalty)) fail(number, "good settings were refused");
        if (!lz_penalty_apply(penalty, logits, 2, vocab, tokens, (size_t)n)) fail(number, "a bad stride was accepted");
        if (!lz_penalty_apply(penalty, logits, 4, 0, tokens, (size_t)n)) fail(number, "an empty vocabulary was accepted");
        if (lz_penalty_apply(penalty, logits, sizeof(float) * step, vocab, tokens, (size_t)n)) fail(number, "refused");
        define(&s, bits, vocab, tokens, n);
        for (i = 0; i < vocab; i++) {
            size_t at = step * (size_t)i;
            if (!right(before[at], logits[at], s.strength, bits[i])) {
                fprintf(stderr, "token %d: %g instead of %g + %g\n", i, logits[at], before[at], s.strength * bits[i]);
                fail(number, "not as defined");
            }
            before[at] = logits[at];
        }
        if (!below(4)) run_stream(number, &s, penalty, vocab, tokens, n);
        free(memory);
    }
    if (memcmp(before, logits, sizeof(float) * width)) fail(number, "memory between the logits was written");
    free(tokens);
    free(logits);
    free(before);
    free(bits);
}

int main(int argc, char **argv)
{
    long cases = argc > 1 ? atol(argv[1]) : 1000000, i;
    for (i = 0; i < cases; i++) {
        state = ((uint64_t)i + 1) * 0x9E3779B97F4A7C15u; /* every case by its number alone */
        random_bits();
        run_case(i);
    }
    if (partly_open < cases / 50) fail(cases, "too few gates were open in part");
    printf("%ld cases: no finding\n", cases);
    return 0;
}
