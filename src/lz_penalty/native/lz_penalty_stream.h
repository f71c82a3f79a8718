/* The LZ penalty of one sequence that grows token by token: the values of lz_penalty.h, for large windows much faster.
 *
 *     lz_penalty_stream *stream;
 *     size_t size = lz_penalty_stream_size(&settings);    // 0: malformed, lz_penalty_check says why
 *     int error = lz_penalty_stream_init(malloc(size), size, &settings, &stream);
 *     lz_penalty_stream_accept(stream, token);
 *     count = lz_penalty_stream_candidates(stream, vocab_size);  // then stream->penalty->ids and ->values
 *
 * `lz_penalty_candidates` reads the whole window at every step. A stream has an index of its tokens, and reads only the
 * occurrences of the newest token and, where single tokens are charged, each token of the window once. The results are
 * exactly equal. Accepting a token costs a store: the index is brought up to date by the next `candidates`.
 *
 * Positions count from 1, so that 0 means "none" or "outside". What belongs to a position is in the slot
 * `position & mask` of an array that is longer than any distance at which it is read.
 */
#ifndef LZ_PENALTY_STREAM_H
#define LZ_PENALTY_STREAM_H

#include "lz_penalty.h"

typedef struct {
    lz_penalty *penalty;
    int32_t *tokens;     /* the last accepted tokens, oldest first */
    int32_t *first;      /* by hash value of a token: its newest position */
    int32_t *same;       /* the position before with an equal hash value */
    int32_t *first_gram; /* with a gate: the newest n-gram of each hash value, by the position of its last token */
    int32_t *same_gram;
    int32_t *newer;      /* if single tokens are charged: the list of the last occurrences, linked both ways by position */
    int32_t *older;
    uint8_t *copied;     /* with a gate: whether the n-gram that ends here occurred before */
    uint64_t key, power; /* rolling hash of the newest n-gram */
    size_t n_tokens, capacity, reach;
    int32_t position, indexed, begin; /* of the newest token, of the newest in the index, before the oldest in the index */
    int32_t head, tail;               /* of the list */
    int32_t share;                    /* copied tokens among the last gate_window ones */
    int32_t period, run, run_end;     /* the longest run that was found last, and the position where it ended; 0: none */
    int32_t mask, bits;
} lz_penalty_stream;

static inline size_t lz_penalty__reach(const lz_penalty_settings *s)
{
    return (size_t)lz_penalty__max(s->gate_window + s->window_size + s->buffer_size, s->loop_window);
}

static inline int lz_penalty__charges_single(const lz_penalty_settings *s) { return s->min_match_length == 1; }

/* Return how many bytes a stream with these settings needs; 0 if they are malformed. */
LZ_PENALTY_API size_t lz_penalty_stream_size(const lz_penalty_settings *s)
{
    const size_t penalty = lz_penalty_size(s), header = (sizeof(lz_penalty_stream) + 15) / 16 * 16;
    size_t reach, slots = 1, arrays = 2;
    if (!penalty) return 0;
    reach = lz_penalty__reach(s);
    while (slots <= reach) slots *= 2;
    if (s->gate_window) arrays += 3;
    if (lz_penalty__charges_single(s)) arrays += 2;
    return header + (penalty + 15) / 16 * 16 + 4 * (2 * reach + arrays * slots);
}

/* Forget all tokens. */
LZ_PENALTY_API void lz_penalty_stream_reset(lz_penalty_stream *t)
{
    t->n_tokens = 0;
    t->position = t->indexed = t->begin = t->period = 0;
}

/* Make a stream in `memory` (aligned as by malloc). Nothing is written unless LZ_PENALTY_OK is returned. */
LZ_PENALTY_API int lz_penalty_stream_init(
    void *memory, size_t size, const lz_penalty_settings *s, lz_penalty_stream **out)
{
    const size_t header = (sizeof(lz_penalty_stream) + 15) / 16 * 16;
    lz_penalty_stream *t = (lz_penalty_stream *)memory;
    size_t penalty, slots;
    lz_penalty *inner;
    int error = lz_penalty_check(s);
    if (error != LZ_PENALTY_OK) return error;
    if (!memory || !out) return LZ_PENALTY_BAD_POINTER;
    if (size < lz_penalty_stream_size(s)) return LZ_PENALTY_BAD_MEMORY;
    penalty = (lz_penalty_size(s) + 15) / 16 * 16;
    error = lz_penalty_init((char *)memory + header, penalty, s, &inner);
    if (error != LZ_PENALTY_OK) return error;
    t->penalty = inner;
    t->reach = lz_penalty__reach(s);
    t->capacity = 2 * t->reach;
    for (t->bits = 0; (size_t)1 << t->bits <= t->reach;) t->bits++;
    slots = (size_t)1 << t->bits;
    t->mask = (int32_t)slots - 1;
    t->tokens = (int32_t *)((char *)memory + header + penalty);
    t->first = t->tokens + t->capacity;
    t->same = t->first + slots;
    t->first_gram = t->same + slots;
    t->same_gram = t->first_gram + (s->gate_window ? slots : 0);
    t->newer = t->same_gram + (s->gate_window ? slots : 0);
    t->older = t->newer + (lz_penalty__charges_single(s) ? slots : 0);
    t->copied = (uint8_t *)(t->older + (lz_penalty__charges_single(s) ? slots : 0));
    lz_penalty_stream_reset(t);
    *out = t;
    return LZ_PENALTY_OK;
}

/* Copy the tokens of a stream with equal settings. The index is made again when it is needed. */
LZ_PENALTY_API void lz_penalty_stream_copy(const lz_penalty_stream *from, lz_penalty_stream *to)
{
    const size_t n = from->n_tokens < to->capacity ? from->n_tokens : to->capacity;
    if (n) memcpy(to->tokens, from->tokens + (from->n_tokens - n), n * sizeof(int32_t));
    to->n_tokens = n;
    to->position = (int32_t)n;
    to->indexed = to->begin = to->period = 0;
}

/* Return the token at a position that is kept. */
static inline int32_t lz_penalty__token(const lz_penalty_stream *t, int32_t position)
{
    return t->tokens[(ptrdiff_t)t->n_tokens - 1 - (t->position - position)];
}

static inline uint32_t lz_penalty__bucket(const lz_penalty_stream *t, uint64_t key)
{
    return t->bits ? (uint32_t)(key * t->penalty->multiplier >> (64 - t->bits)) : 0;
}

/* Return the last position before this one with an equal token, at most `within` tokens away; 0 if there is none. */
static inline int32_t lz_penalty__before(const lz_penalty_stream *t, int32_t position, int32_t within)
{
    const int32_t token = lz_penalty__token(t, position);
    int32_t other = t->same[position & t->mask];
    while (other > t->begin && position - other <= within) {
        if (lz_penalty__token(t, other) == token) return other;
        other = t->same[other & t->mask];
    }
    return 0;
}

static inline void lz_penalty__unlink(lz_penalty_stream *t, int32_t position)
{
    const int32_t newer = t->newer[position & t->mask], older = t->older[position & t->mask];
    if (newer) t->older[newer & t->mask] = older;
    else t->head = older;
    if (older) t->newer[older & t->mask] = newer;
    else t->tail = newer;
}

/* Put the token at this position into the list, in front. Its occurrence before and what leaves the window are removed. */
static inline void lz_penalty__list(lz_penalty_stream *t, int32_t position)
{
    const int32_t window = t->penalty->settings.window_size, slot = position & t->mask;
    const int32_t other = lz_penalty__before(t, position, window);
    if (other) lz_penalty__unlink(t, other);
    if (t->tail && position - t->tail >= window) lz_penalty__unlink(t, t->tail); /* one at a time gets so old */
    t->older[slot] = t->head;
    t->newer[slot] = 0;
    if (t->head) t->newer[t->head & t->mask] = position;
    else t->tail = position;
    t->head = position;
}

/* Note whether the n-gram that ends at this position occurred in the window before. */
static inline void lz_penalty__gram(lz_penalty_stream *t, int32_t position)
{
    const lz_penalty_settings *s = &t->penalty->settings;
    const uint64_t m = t->penalty->multiplier;
    const int32_t size = lz_penalty__max(2, s->min_match_length), length = position - t->begin, slot = position & t->mask;
    int32_t *head, other;
    t->key = m * (t->key + (uint64_t)(int64_t)lz_penalty__token(t, position));
    if (length > size) t->key -= t->power * (uint64_t)(int64_t)lz_penalty__token(t, position - size);
    t->copied[slot] = 0;
    if (length > s->gate_window) t->share -= t->copied[(position - s->gate_window) & t->mask];
    if (length < size) return;
    head = t->first_gram + (t->bits ? t->key >> (64 - t->bits) : 0);
    t->same_gram[slot] = other = *head;
    *head = position;
    for (; other > t->begin && position - other <= s->window_size; other = t->same_gram[other & t->mask]) {
        int32_t k = 0;
        while (k < size && lz_penalty__token(t, position - k) == lz_penalty__token(t, other - k)) k++;
        if (k == size) {
            t->copied[slot] = 1;
            t->share++;
            break;
        }
    }
}

/* Bring the index up to date. */
static inline void lz_penalty__index(lz_penalty_stream *t)
{
    const lz_penalty_settings *s = &t->penalty->settings;
    const int32_t offset = s->lookback == LZ_PENALTY_BEFORE_BUFFER ? s->buffer_size : 0;
    const int32_t kept = lz_penalty__min((int32_t)t->n_tokens, (int32_t)t->reach);
    if (!t->indexed || t->position - t->indexed >= (int32_t)t->reach) { /* begin again */
        int32_t size = lz_penalty__max(2, s->min_match_length);
        memset(t->first, 0, sizeof(int32_t) << t->bits);
        if (s->gate_window) memset(t->first_gram, 0, sizeof(int32_t) << t->bits);
        t->begin = t->indexed = t->position - kept;
        t->head = t->tail = t->share = 0;
        t->key = 0;
        for (t->power = t->penalty->multiplier; size > 0; size--) t->power *= t->penalty->multiplier;
    }
    while (t->indexed < t->position) {
        const int32_t position = ++t->indexed;
        int32_t *head = t->first + lz_penalty__bucket(t, (uint64_t)(uint32_t)lz_penalty__token(t, position));
        t->same[position & t->mask] = *head;
        *head = position;
        if (lz_penalty__charges_single(s) && position - offset > t->begin) lz_penalty__list(t, position - offset);
        if (s->gate_window) lz_penalty__gram(t, position);
    }
}

/* Append a token. */
LZ_PENALTY_API void lz_penalty_stream_accept(lz_penalty_stream *t, int32_t token)
{
    if (t->n_tokens == t->capacity) { /* keep the tokens within reach; this is rare, so a token costs little */
        if (t->position - t->indexed < (int32_t)t->reach) lz_penalty__index(t);
        else t->indexed = 0; /* those that are kept are enough for a new index */
        memcpy(t->tokens, t->tokens + t->reach, t->reach * sizeof(int32_t));
        t->n_tokens = t->reach;
    }
    if (t->position == INT32_MAX) { /* count again from the oldest token that is kept */
        t->position = (int32_t)t->n_tokens;
        t->indexed = t->period = 0;
    }
    t->tokens[t->n_tokens++] = token;
    t->position++;
}

/* Return how long the longest run of the last step is now, 0 if it has ended. In a loop this saves reading all of it. */
static inline int32_t lz_penalty__continued(const lz_penalty_stream *t)
{
    const int32_t grown = t->position - t->run_end;
    int32_t i;
    if (!t->period || grown > t->run) return 0;
    for (i = 0; i < grown; i++)
        if (lz_penalty__token(t, t->position - i) != lz_penalty__token(t, t->position - i - t->period)) return 0;
    return t->run + grown;
}

/* As lz_penalty__runs, but only for the periods at which the newest token occurred: all other runs are 0. The periods that
 * are matches in the window, `offset` tokens away at least, are counted and put into `ids`, which is still free. */
static inline lz_penalty__loop lz_penalty__sparse_runs(
    lz_penalty_stream *t, int32_t recent, int32_t looped, int32_t offset, int32_t *matches)
{
    const int32_t n = lz_penalty__max(recent, looped), stop = lz_penalty__max(recent, looped / 3 + 1);
    const int32_t *end = t->tokens + t->n_tokens;
    const int32_t known = lz_penalty__continued(t), known_period = t->period;
    int32_t *run = t->penalty->run, left = 0, right = 0, count = 0, other;
    lz_penalty__loop loop = {0, 0, 0};
    t->period = t->run = 0;
    t->run_end = t->position;
    for (other = lz_penalty__before(t, t->position, stop - 1); other;) {
        const int32_t d = t->position - other;
        int32_t length = d < right ? lz_penalty__min(right - d, run[d - left]) : 1;
        if (d == known_period) length = lz_penalty__max(length, lz_penalty__min(known, n - d));
        while (d + length < n && lz_penalty__at(end, length) == lz_penalty__at(end, d + length)) length++;
        run[d] = length;
        if (length > t->run) {
            t->period = d;
            t->run = length;
        }
        if (d >= offset && d < recent) t->penalty->ids[count++] = d;
        if (d + length > right) {
            left = d;
            right = d + length;
        }
        lz_penalty__consider(&loop, d, lz_penalty__min(length, looped - d));
        if (d + 1 >= stop || (d >= recent && loop.ruled_out >= looped / 3)) break;
        other = lz_penalty__before(t, other, stop - 1 - d);
    }
    *matches = count;
    return loop;
}

/* As lz_penalty_candidates, for the accepted tokens: fill `ids` and `values` of `penalty`, and return how many there are. */
LZ_PENALTY_API int32_t lz_penalty_stream_candidates(lz_penalty_stream *t, int32_t vocab_size)
{
    lz_penalty *p = t->penalty;
    const lz_penalty_settings *s = &p->settings;
    const int paper = s->formula == LZ_PENALTY_PAPER;
    const int32_t offset = s->lookback == LZ_PENALTY_BEFORE_BUFFER ? s->buffer_size : 0;
    const int32_t seen = s->min_match_length > 0 ? offset + s->window_size : 0;
    int32_t recent = t->n_tokens < (size_t)seen ? (int32_t)t->n_tokens : seen;
    int32_t looped = s->escalation > 0 ? s->loop_window : 0, matches, candidates, at, i;
    int32_t nearest = 0; /* distance of the token that was added last */
    const int32_t *end = t->tokens + t->n_tokens;
    lz_penalty__step step;

    if (t->n_tokens < (size_t)looped) looped = (int32_t)t->n_tokens;
    if (!recent && !looped) return 0;
    lz_penalty__index(t);
    step = lz_penalty__begin(p, vocab_size, end, lz_penalty__sparse_runs(t, recent, looped, offset, &matches));
    if (s->gate_window) {
        const int32_t n = lz_penalty__min((int32_t)t->n_tokens, s->gate_window); /* only fewer tokens can close it */
        step.opening = lz_penalty__too_short(s, n) ? 0 : lz_penalty__opening(s, (double)t->share / n);
        if (step.opening == 0) recent = matches = 0; /* the codelength considers nothing */
    }
    for (i = 0; i < matches; i++) { /* a match is a run inside the window */
        int32_t *run = p->run + p->ids[i];
        *run = lz_penalty__min(*run, lz_penalty__min(s->buffer_size, recent - p->ids[i]));
        step.longest = lz_penalty__max(step.longest, *run);
    }
    step.extended = step.longest >= 1 && step.longest + 1 >= s->min_match_length;
    if (paper && s->min_match_length != 1 && !step.extended) candidates = 0;
    else candidates = recent - offset - (paper ? 0 : s->buffer_size);
    for (i = 0; i < matches; i++) { /* what is added takes the place of matches that were read */
        const int32_t d = p->ids[i], e = d - offset, token = lz_penalty__at(end, d - 1);
        if (e < 1 || e > candidates || (paper && !(step.extended && p->run[d] == step.longest))) continue;
        if (nearest > 1 && token == lz_penalty__at(end, offset + nearest - 1) && p->run[d] <= p->run[offset + nearest])
            continue; /* in a loop: the nearest is the cheapest */
        lz_penalty__add(p, &step, token, e, p->run[d]);
        nearest = e;
    }
    if (lz_penalty__charges_single(s)) /* of equal tokens, the nearest is the cheapest */
        for (at = t->head; at && t->position - offset - at < candidates; at = t->older[at & t->mask])
            lz_penalty__add(p, &step, lz_penalty__token(t, at), t->position - offset - at + 1, 0);
    lz_penalty__add_loop(p, &step);
    return step.count;
}

#endif
