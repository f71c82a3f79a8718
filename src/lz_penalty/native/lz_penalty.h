/* The LZ penalty in portable C99 (and C++): one header that depends on the C library only (link with -lm).
 *
 *     lz_penalty_settings settings = lz_penalty_guarded();
 *     size_t size = lz_penalty_size(&settings);           // 0: malformed, lz_penalty_check says why
 *     lz_penalty *penalty;
 *     int error = lz_penalty_init(malloc(size), size, &settings, &penalty);
 *     error = lz_penalty_apply(penalty, logits, sizeof *logits, vocab_size, tokens, n_tokens);
 *
 * `lz_penalty_apply` changes logits as docs/mathematics.md defines it and is a pure function of tokens, logits and
 * settings. A context is plain memory of the caller with settings, a table of logarithms and scratch space; the caller
 * frees the memory and nothing else. The settings bound its size, below 2 MiB at the largest allowed. One context serves
 * one thread at a time. The time is linear in window, loop window and gate window, whatever the vocabulary.
 *
 * Define LZ_PENALTY_API before you include this header to give the functions another linkage than `static inline`. */
#ifndef LZ_PENALTY_H
#define LZ_PENALTY_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef LZ_PENALTY_API
#define LZ_PENALTY_API static inline
#endif

enum { LZ_PENALTY_PAPER = 0, LZ_PENALTY_SGLANG = 1 };           /* formula */
enum { LZ_PENALTY_BEFORE_BUFFER = 0, LZ_PENALTY_ADJACENT = 1 }; /* lookback */
enum { LZ_PENALTY_MAX_WINDOW = 65536, LZ_PENALTY_MAX_BUFFER = 4096, LZ_PENALTY_MAX_EXEMPT = 2047 };
enum { LZ_PENALTY_MIN_GATE_WINDOW = 4, LZ_PENALTY_MAX_GATE_WINDOW = 4096 };

enum { /* errors; lz_penalty_error has their texts */
    LZ_PENALTY_OK = 0, LZ_PENALTY_BAD_POINTER, LZ_PENALTY_BAD_STRENGTH, LZ_PENALTY_BAD_ESCALATION, LZ_PENALTY_BAD_FORMULA,
    LZ_PENALTY_BAD_LOOKBACK, LZ_PENALTY_BAD_WINDOW, LZ_PENALTY_BAD_BUFFER, LZ_PENALTY_BAD_MIN_MATCH,
    LZ_PENALTY_BAD_LOOP_WINDOW, LZ_PENALTY_BAD_GATE, LZ_PENALTY_BAD_EXEMPT, LZ_PENALTY_BAD_MEMORY, LZ_PENALTY_BAD_VOCAB,
    LZ_PENALTY_BAD_STRIDE };

typedef struct {
    double strength;             /* logits per bit; 0 to 100 */
    double escalation;           /* further bits against a loop, growing with every copy; 0 to 100 */
    double gate_low;             /* charge nothing up to this copy share; 0 to 1 */
    double gate_high;            /* charge whole codelengths from this copy share on; above gate_low, at most 1 */
    int32_t formula;             /* LZ_PENALTY_PAPER or LZ_PENALTY_SGLANG */
    int32_t lookback;            /* LZ_PENALTY_BEFORE_BUFFER or LZ_PENALTY_ADJACENT, which SGLANG requires */
    int32_t window_size;         /* 1 to 65,536 */
    int32_t buffer_size;         /* 1 to 4,096 */
    int32_t min_match_length;    /* 1 to buffer_size + 1; 0: no codelength adjustment; SGLANG requires 1 */
    int32_t loop_window;         /* 1 to 65,536 */
    int32_t gate_window;         /* 4 to 4,096; 0: no gate. A gate requires min_match_length > 0 */
    int32_t gate_from;           /* the gate is closed with fewer tokens; 1 to 4,096; 0 or too large: half of gate_window */
    const int32_t *exempt_ids;   /* never adjusted: ascending, each once, none negative; copied into the context */
    int32_t exempt_count;        /* 0 to 2,047 */
} lz_penalty_settings;

typedef struct {
    lz_penalty_settings settings;
    uint64_t exempt_mask; /* bit (id modulo 64) of every exempt id: most tokens need no search */
    int32_t *exempt_ids;
    int32_t *run;   /* trailing run of every period, then match of every distance */
    int32_t *ids;   /* candidates, nearest first; a token may occur several times, its smallest value counts */
    float *values;  /* their bits, relative to a literal */
    float *log2;    /* of 0 (unused), 1, 2, ... */
    int32_t *heads; /* with a gate: the newest n-gram of each hash value */
    int32_t *older; /* the next n-gram with the same hash value */
    uint64_t multiplier; /* of the hash; it differs, so that nobody can prepare a text in which many n-grams collide */
} lz_penalty;

/* Return the paper's settings: strength 0.15, window 512, buffer 32, match of 1 token, loop window 4,096. */
LZ_PENALTY_API lz_penalty_settings lz_penalty_defaults(void)
{
    const lz_penalty_settings s = {0.15, 0, 0, 0, LZ_PENALTY_PAPER, LZ_PENALTY_BEFORE_BUFFER, 512, 32, 1, 4096, 0, 0, NULL, 0};
    return s;
}

/* Return the preset `guarded`. It is made for the output alone: pass no tokens of the prompt. */
LZ_PENALTY_API lz_penalty_settings lz_penalty_guarded(void)
{
    const lz_penalty_settings s = {0.4, 1, 0.4, 0.5, LZ_PENALTY_PAPER, LZ_PENALTY_ADJACENT, 384, 32, 4, 4096, 384, 48, NULL, 0};
    return s;
}

/* Return LZ_PENALTY_OK, or the error in the settings. */
LZ_PENALTY_API int lz_penalty_check(const lz_penalty_settings *s)
{
    int32_t i;
    if (!s) return LZ_PENALTY_BAD_POINTER;
    if (!(s->strength >= 0 && s->strength <= 100)) return LZ_PENALTY_BAD_STRENGTH; /* NaN fails too */
    if (!(s->escalation >= 0 && s->escalation <= 100)) return LZ_PENALTY_BAD_ESCALATION;
    if (s->formula != LZ_PENALTY_PAPER && s->formula != LZ_PENALTY_SGLANG) return LZ_PENALTY_BAD_FORMULA;
    if (s->lookback != LZ_PENALTY_BEFORE_BUFFER && s->lookback != LZ_PENALTY_ADJACENT) return LZ_PENALTY_BAD_LOOKBACK;
    if (s->window_size < 1 || s->window_size > LZ_PENALTY_MAX_WINDOW) return LZ_PENALTY_BAD_WINDOW;
    if (s->buffer_size < 1 || s->buffer_size > LZ_PENALTY_MAX_BUFFER) return LZ_PENALTY_BAD_BUFFER;
    if (s->min_match_length < 0 || s->min_match_length > s->buffer_size + 1) return LZ_PENALTY_BAD_MIN_MATCH;
    if (s->loop_window < 1 || s->loop_window > LZ_PENALTY_MAX_WINDOW) return LZ_PENALTY_BAD_LOOP_WINDOW;
    if (s->gate_window) {
        if (s->gate_window < LZ_PENALTY_MIN_GATE_WINDOW || s->gate_window > LZ_PENALTY_MAX_GATE_WINDOW)
            return LZ_PENALTY_BAD_GATE;
        if (!(0 <= s->gate_low && s->gate_low < s->gate_high && s->gate_high <= 1)) return LZ_PENALTY_BAD_GATE;
        if (s->gate_from < 0 || s->gate_from > LZ_PENALTY_MAX_GATE_WINDOW) return LZ_PENALTY_BAD_GATE;
        if (!s->min_match_length) return LZ_PENALTY_BAD_GATE;
    }
    if (s->formula == LZ_PENALTY_SGLANG && s->lookback != LZ_PENALTY_ADJACENT) return LZ_PENALTY_BAD_LOOKBACK;
    if (s->formula == LZ_PENALTY_SGLANG && s->min_match_length != 1) return LZ_PENALTY_BAD_MIN_MATCH;
    if (s->exempt_count < 0 || s->exempt_count > LZ_PENALTY_MAX_EXEMPT) return LZ_PENALTY_BAD_EXEMPT;
    if (s->exempt_count && !s->exempt_ids) return LZ_PENALTY_BAD_EXEMPT;
    for (i = 0; i < s->exempt_count; i++)
        if (s->exempt_ids[i] < 0 || (i && s->exempt_ids[i] <= s->exempt_ids[i - 1])) return LZ_PENALTY_BAD_EXEMPT;
    return LZ_PENALTY_OK;
}

/* Return what an error code means, in words. */
LZ_PENALTY_API const char *lz_penalty_error(int code)
{
    static const char *const texts[] = {
        "no error", "a pointer is NULL",
        "strength must be a number from 0 to 100",
        "escalation must be a number from 0 to 100",
        "formula must be LZ_PENALTY_PAPER or LZ_PENALTY_SGLANG",
        "lookback must be LZ_PENALTY_BEFORE_BUFFER or LZ_PENALTY_ADJACENT, and the latter with LZ_PENALTY_SGLANG",
        "window_size must be from 1 to 65536", "buffer_size must be from 1 to 4096",
        "min_match_length must be from 0 (none) to buffer_size + 1, and 1 with LZ_PENALTY_SGLANG",
        "loop_window must be from 1 to 65536",
        "a gate needs gate_window from 4 to 4096, gate_from from 0 to 4096, 0 <= gate_low < gate_high <= 1 and "
        "min_match_length > 0",
        "exempt_ids must be at most 2047 ids, ascending, each once, none negative",
        "the memory must be aligned and of at least lz_penalty_size bytes",
        "vocab_size must be at least 1",
        "stride must be a multiple of the size of a float, and at least that",
    };
    return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "unknown error";
}

static inline int32_t lz_penalty__max(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t lz_penalty__min(int32_t a, int32_t b) { return a < b ? a : b; }

/* Count the entries of the arrays that follow a context, for settings that were checked. */
static inline void lz_penalty__sizes(
    const lz_penalty_settings *s, size_t *run, size_t *ids, size_t *logs, size_t *heads, size_t *older)
{
    int32_t seen = s->window_size + (s->lookback == LZ_PENALTY_BEFORE_BUFFER ? s->buffer_size : 0);
    *run = (size_t)lz_penalty__max(seen, s->loop_window / 3 + 1);
    *ids = (size_t)s->window_size + 2; /* a token that extends a match may come twice, and the loop's token */
    *logs = (size_t)lz_penalty__max(s->window_size, s->buffer_size) + 2;
    *older = s->gate_window ? (size_t)(s->gate_window + s->window_size + s->buffer_size) : 0;
    *heads = s->gate_window ? 1 : 0;
    while (*heads < *older) *heads *= 2;
}

/* Return how many bytes a context for these settings needs; 0 if they are malformed. */
LZ_PENALTY_API size_t lz_penalty_size(const lz_penalty_settings *s)
{
    size_t run, ids, logs, heads, older;
    if (lz_penalty_check(s) != LZ_PENALTY_OK) return 0;
    lz_penalty__sizes(s, &run, &ids, &logs, &heads, &older);
    return sizeof(lz_penalty) + 4 * ((size_t)s->exempt_count + run + 2 * ids + logs + heads + older);
}

/* Make a context in `memory` (aligned as by malloc). Nothing is written unless LZ_PENALTY_OK is returned. */
LZ_PENALTY_API int lz_penalty_init(void *memory, size_t size, const lz_penalty_settings *s, lz_penalty **out)
{
    size_t run, ids, logs, heads, older, i;
    lz_penalty *p = (lz_penalty *)memory;
    int error = lz_penalty_check(s);
    if (error != LZ_PENALTY_OK) return error;
    if (!memory || !out) return LZ_PENALTY_BAD_POINTER;
    if (size < lz_penalty_size(s) || (uintptr_t)memory % sizeof(void *)) return LZ_PENALTY_BAD_MEMORY;
    lz_penalty__sizes(s, &run, &ids, &logs, &heads, &older);
    p->settings = *s;
    p->exempt_ids = (int32_t *)(p + 1);
    p->run = p->exempt_ids + s->exempt_count;
    p->ids = p->run + run;
    p->values = (float *)(p->ids + ids);
    p->log2 = p->values + ids;
    p->heads = (int32_t *)(p->log2 + logs);
    p->older = p->heads + heads;
    p->multiplier = (uint64_t)(uintptr_t)p * UINT64_C(0x9E3779B97F4A7C15) | 1;
    if (s->exempt_count) memcpy(p->exempt_ids, s->exempt_ids, sizeof(int32_t) * (size_t)s->exempt_count);
    p->settings.exempt_ids = p->exempt_ids;
    p->exempt_mask = 0;
    for (i = 0; i < (size_t)s->exempt_count; i++) p->exempt_mask |= (uint64_t)1 << (p->exempt_ids[i] & 63);
    p->log2[0] = 0;
    for (i = 1; i < logs; i++) p->log2[i] = (float)log2((double)i);
    *out = p;
    return LZ_PENALTY_OK;
}

/* Return the token `back` places before the newest; `end` is one past the newest. */
static inline int32_t lz_penalty__at(const int32_t *end, int32_t back) { return end[-1 - (ptrdiff_t)back]; }

static inline int lz_penalty__exempt(const lz_penalty *p, int32_t token)
{
    int32_t low = 0, high = p->settings.exempt_count, middle;
    if (!(p->exempt_mask >> (token & 63) & 1)) return 0;
    while (low < high) {
        middle = low + (high - low) / 2;
        if (p->exempt_ids[middle] < token) low = middle + 1;
        else high = middle;
    }
    return low < p->settings.exempt_count && p->exempt_ids[low] == token;
}

/* The loop at the end of the tokens: the period with the most copies, three at least, ties to the smallest. */
typedef struct {
    int32_t period;    /* 0 if there is no loop */
    int32_t run;       /* the length of its trailing run */
    int32_t ruled_out; /* no longer period up to this one needs a look */
} lz_penalty__loop;

/* Consider the trailing run of the period `d`, of `length` tokens. Periods must come in rising order.
 * A run that counts rules out every other period up to its own length (Fine and Wilf). */
static inline void lz_penalty__consider(lz_penalty__loop *loop, int32_t d, int32_t length)
{
    if (length < 2 * d || d <= loop->ruled_out) return;
    loop->ruled_out = length;
    if (!loop->period || (int64_t)length * loop->period > (int64_t)loop->run * d) {
        loop->period = d;
        loop->run = length;
    }
}

/* Fill `run[d]` for the periods d below `recent` (the Z-function of the reversed context), and return the loop among the
 * last `looped` tokens. */
static inline lz_penalty__loop lz_penalty__runs(const int32_t *end, int32_t recent, int32_t looped, int32_t *run)
{
    int32_t n = lz_penalty__max(recent, looped), stop = lz_penalty__max(recent, looped / 3 + 1);
    int32_t left = 0, right = 0, d;
    lz_penalty__loop loop = {0, 0, 0};
    for (d = 1; d < stop; d++) {
        int32_t length = 0;
        if (d < right) length = lz_penalty__min(right - d, run[d - left]);
        else if (lz_penalty__at(end, d) != end[-1]) { /* true for most of ordinary text */
            run[d] = 0;
            continue;
        }
        while (d + length < n && lz_penalty__at(end, length) == lz_penalty__at(end, d + length)) length++;
        run[d] = length;
        if (d + length > right) {
            left = d;
            right = d + length;
        }
        lz_penalty__consider(&loop, d, lz_penalty__min(length, looped - d));
        if (d >= recent && loop.ruled_out >= looped / 3) break;
    }
    return loop;
}

/* Return the copy share of `n` tokens: the share of the last `recent` ones that merely repeat, from n-grams of `size`
 * tokens. Each n-gram is put into a chain of n-grams with equal hash values, the oldest first. The hash of an n-gram
 * follows from that of the n-gram before it, so the time is linear. */
static inline double lz_penalty__copy_share(lz_penalty *p, const int32_t *end, int32_t n, int32_t recent, int32_t size)
{
    const uint64_t m = p->multiplier;
    const int32_t window = p->settings.window_size;
    uint64_t power = 1, key = 0;
    int32_t copied = 0, bits = 1, i;
    if (n < size) return 0;
    while ((int32_t)1 << bits < n) bits++;
    memset(p->heads, -1, sizeof(int32_t) << bits);
    for (i = n - size + 1; i < n; i++) {
        power *= m;
        key += power * (uint64_t)(int64_t)lz_penalty__at(end, i);
    }
    power *= m;
    for (i = n - size; i >= 0; i--) {
        int32_t *head, other;
        key = m * ((uint64_t)(int64_t)lz_penalty__at(end, i) + key);
        head = p->heads + (key >> (64 - bits));
        other = *head;
        p->older[i] = other;
        *head = i;
        key -= power * (uint64_t)(int64_t)lz_penalty__at(end, i + size - 1);
        for (; i < recent && other >= 0 && other - i <= window; other = p->older[other]) {
            int32_t k = 0;
            while (k < size && lz_penalty__at(end, i + k) == lz_penalty__at(end, other + k)) k++;
            if (k == size) {
                copied++;
                break;
            }
        }
    }
    return (double)copied / recent;
}

/* Return which part of every codelength is charged at this copy share, from 0 to 1. */
static inline double lz_penalty__opening(const lz_penalty_settings *s, double share)
{
    const double opening = (share - s->gate_low) / (s->gate_high - s->gate_low);
    return opening < 0 ? 0 : opening > 1 ? 1 : opening;
}

/* Return whether the gate is closed because there are too few tokens. */
static inline int lz_penalty__too_short(const lz_penalty_settings *s, int32_t n)
{
    return 2 * n < s->gate_window && (!s->gate_from || n < s->gate_from);
}

/* Return which part is charged. `run` holds the trailing runs of the periods below
 * `stop`: in a loop, one run contains nearly all recent tokens, and the gate is open whatever the rest. */
static inline double lz_penalty__gate_opening(lz_penalty *p, const int32_t *end, size_t n_tokens, int32_t stop)
{
    const lz_penalty_settings *s = &p->settings;
    const int32_t size = lz_penalty__max(2, s->min_match_length), seen = s->gate_window + s->window_size + size - 1;
    const int32_t n = n_tokens < (size_t)seen ? (int32_t)n_tokens : seen, recent = lz_penalty__min(n, s->gate_window);
    int32_t longest = 0, d;
    double share;
    if (lz_penalty__too_short(s, n)) return 0;
    stop = lz_penalty__min(stop, s->window_size + 1);
    for (d = 1; d < stop; d++) longest = lz_penalty__max(longest, p->run[d]);
    share = (double)lz_penalty__min(recent, longest - size + 1) / recent;
    if (share < s->gate_high) share = lz_penalty__copy_share(p, end, n, recent, size);
    return lz_penalty__opening(s, share);
}

typedef struct { /* what all candidates of one step share */
    double literal, opening, further; /* bits of a literal, charged part of a codelength, further bits against the loop */
    int32_t vocab_size, longest, loop_token, count;
    int extended; /* whether the longest match makes its extensions cheaper */
} lz_penalty__step;

/* Add the token at distance `e` of the window, which extends a match of length `match`, unless it changes nothing. */
static inline void lz_penalty__add(lz_penalty *p, lz_penalty__step *step, int32_t token, int32_t e, int32_t match)
{
    const lz_penalty_settings *s = &p->settings;
    const int before = s->lookback == LZ_PENALTY_BEFORE_BUFFER;
    double value;
    if (token < 0 || token >= step->vocab_size) return;
    if (s->formula != LZ_PENALTY_PAPER) value = ((double)p->log2[e + 1] + (double)p->log2[match + 1]) / (match + 1);
    else if (step->extended && match == step->longest && (!before || e >= 2)) {
        const int32_t l = step->longest;
        value = before ? log2(1 + (e - 1) / (l * ((double)e + l))) - 1 : log2((l + 1.0) / l) - 1;
    } else if (s->min_match_length == 1) value = p->log2[e];
    else return;
    if (lz_penalty__exempt(p, token)) return;
    /* the table's logarithms are floats */
    value = value < (double)(float)step->literal ? step->opening * (value - step->literal) : 0;
    p->ids[step->count] = token;
    p->values[step->count++] = (float)(token == step->loop_token ? value - step->further : value);
}

/* Add the token that would continue the loop, which may be outside the window. */
static inline void lz_penalty__add_loop(lz_penalty *p, lz_penalty__step *step)
{
    const int32_t token = step->loop_token;
    if (token < 0 || token >= step->vocab_size || lz_penalty__exempt(p, token)) return;
    p->ids[step->count] = token;
    p->values[step->count++] = (float)-step->further;
}

static inline lz_penalty__step lz_penalty__begin(
    const lz_penalty *p, int32_t vocab_size, const int32_t *end, lz_penalty__loop loop)
{
    lz_penalty__step step = {log2((double)vocab_size), 1, 0, vocab_size, 0, loop.period ? end[-loop.period] : -1, 0, 0};
    if (loop.period) step.further = p->settings.escalation * (step.literal + 1) * ((double)loop.run / loop.period - 1);
    return step;
}

/* Fill `ids` and `values` (bits relative to a literal, without `strength`) and return how many there are.
 * A token may occur several times: its smallest value counts. Ids outside the vocabulary and exempt ones do not occur. */
LZ_PENALTY_API int32_t lz_penalty_candidates(lz_penalty *p, int32_t vocab_size, const int32_t *tokens, size_t n_tokens)
{
    const lz_penalty_settings *s = &p->settings;
    const int paper = s->formula == LZ_PENALTY_PAPER;
    const int32_t offset = s->lookback == LZ_PENALTY_BEFORE_BUFFER ? s->buffer_size : 0;
    const int32_t seen = s->min_match_length > 0 ? offset + s->window_size : 0;
    int32_t recent = n_tokens < (size_t)seen ? (int32_t)n_tokens : seen;
    int32_t looped = s->escalation > 0 ? s->loop_window : 0, candidates, e;
    const int32_t *end = tokens + n_tokens;
    lz_penalty__step step;

    if (n_tokens < (size_t)looped) looped = (int32_t)n_tokens;
    if (!recent && !looped) return 0;
    step = lz_penalty__begin(p, vocab_size, end, lz_penalty__runs(end, recent, looped, p->run));
    if (s->gate_window) step.opening = lz_penalty__gate_opening(p, end, n_tokens, recent);
    if (step.opening == 0) recent = 0; /* the codelength considers nothing */
    for (e = lz_penalty__max(offset, 1); e < recent; e++) { /* a match is a run inside the window */
        p->run[e] = lz_penalty__min(p->run[e], lz_penalty__min(s->buffer_size, recent - e));
        step.longest = lz_penalty__max(step.longest, p->run[e]);
    }
    step.extended = step.longest >= 1 && step.longest + 1 >= s->min_match_length;
    if (paper && s->min_match_length != 1 && !step.extended) candidates = 0;
    else candidates = recent - offset - (paper ? 0 : s->buffer_size);
    for (e = 1; e <= candidates; e++) {
        const int32_t source = offset + e;
        lz_penalty__add(p, &step, lz_penalty__at(end, source - 1), e, source < recent ? p->run[source] : 0);
    }
    lz_penalty__add_loop(p, &step);
    return step.count;
}

/* Return `logit + change`. A finite logit stays finite; -inf and NaN stay as they are. */
static inline float lz_penalty__moved(float logit, double change)
{
    double moved = (double)logit + change;
    if (!isfinite(logit)) return logit;
    return moved < -(double)FLT_MAX ? -FLT_MAX : (float)moved; /* a change is never above 0 */
}

/* Penalise the logits of ids 0 to vocab_size - 1, in place.
 *
 * The logit of id a is `a * stride` bytes after `logits`. The stride is sizeof(float), or more if logits are one field of
 * an array of structures. `tokens` is the context, oldest first; ids outside the vocabulary may match and receive nothing.
 * On an error nothing is changed. */
LZ_PENALTY_API int lz_penalty_apply(
    lz_penalty *p, float *logits, size_t stride, int32_t vocab_size, const int32_t *tokens, size_t n_tokens)
{
    int32_t count, i;
    char *base = (char *)logits;
    if (!p || !logits || (n_tokens && !tokens)) return LZ_PENALTY_BAD_POINTER;
    if (stride < sizeof(float) || stride % sizeof(float)) return LZ_PENALTY_BAD_STRIDE;
    if (vocab_size < 1) return LZ_PENALTY_BAD_VOCAB;
    if (!n_tokens) return LZ_PENALTY_OK;
    count = lz_penalty_candidates(p, vocab_size, tokens, n_tokens);
    for (i = 0; i < count; i++) /* all are computed from the original logits, before the first is changed */
        p->values[i] = lz_penalty__moved(
            *(float *)(base + stride * (size_t)p->ids[i]), p->settings.strength * (double)p->values[i]);
    for (i = 0; i < count; i++) {
        float *logit = (float *)(base + stride * (size_t)p->ids[i]);
        if (p->values[i] < *logit) *logit = p->values[i];
    }
    return LZ_PENALTY_OK;
}

#endif
