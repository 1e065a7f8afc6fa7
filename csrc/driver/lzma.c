/* LZMA in the words of its specification: a range decoder gives bits, each with a probability that follows the bits
 * before it; the bits make literals, matches (a length and a distance) and repeated matches (one of the last four
 * distances). The output is the dictionary. */
#include "driver/lzma.h"

#include <stdint.h>

enum {
    PROBABILITY_BITS = 11,
    HALF = 1 << (PROBABILITY_BITS - 1), /* what each probability begins with */
    MOVE_BITS = 5,
    STATES = 12,
    FIRST_STATE_AFTER_MATCH = 7,
    POSITIONS = 1 << LZMA_PB,
    MIN_MATCH = 2,
    DISTANCE_CLASSES = 4, /* of match lengths 2, 3, 4 and more */
    SLOT_BITS = 6,
    ALIGN_BITS = 4,
    FIRST_DIRECT_SLOT = 14, /* from here on some bits of a distance have an even probability */
    FULL_DISTANCES = 1 << (FIRST_DIRECT_SLOT / 2),
    LITERAL_CODER = 0x300,
};

typedef uint16_t probability;

typedef struct length_coder {
    probability beyond_low, beyond_middle, low[POSITIONS][8], middle[POSITIONS][8], high[256];
} length_coder;

typedef struct probabilities {
    probability is_match[STATES][POSITIONS], is_repeated[STATES], is_repeated_1_to_3[STATES],
        is_repeated_2_or_3[STATES], is_repeated_3[STATES], is_longer_than_1[STATES][POSITIONS];
    probability slot[DISTANCE_CLASSES][1 << SLOT_BITS], low_bits[FULL_DISTANCES], align[1 << ALIGN_BITS];
    length_coder match_length, repeated_length;
    probability literal[LITERAL_CODER << (LZMA_LC + LZMA_LP)];
} probabilities;

typedef struct range_decoder {
    const unsigned char *in, *end;
    uint32_t range, code;
    int ended; /* a byte was asked for that is not there */
} range_decoder;

static uint32_t next_byte(range_decoder *r) {
    if (r->in < r->end) return *r->in++;
    r->ended = 1;
    return 0;
}

static void normalize(range_decoder *r) {
    if (r->range >> 24) return;
    r->range <<= 8;
    r->code = r->code << 8 | next_byte(r);
}

static unsigned decode_bit(range_decoder *r, probability *p) {
    const uint32_t bound = (r->range >> PROBABILITY_BITS) * *p;
    unsigned bit = r->code >= bound;
    if (bit) {
        r->range -= bound;
        r->code -= bound;
        *p = (probability)(*p - (*p >> MOVE_BITS));
    } else {
        r->range = bound;
        *p = (probability)(*p + (((1 << PROBABILITY_BITS) - *p) >> MOVE_BITS));
    }
    normalize(r);
    return bit;
}

/* Bits of even probability, the highest first. */
static uint32_t decode_direct(range_decoder *r, int bits) {
    uint32_t value = 0;
    while (bits--) {
        r->range >>= 1;
        const uint32_t bit = r->code >= r->range;
        if (bit) r->code -= r->range;
        value = value << 1 | bit;
        normalize(r);
    }
    return value;
}

/* A number of `bits` bits, the highest first; each has a probability for each prefix. */
static uint32_t decode_tree(range_decoder *r, probability *p, int bits) {
    uint32_t node = 1;
    for (int i = 0; i < bits; i++) node = node << 1 | decode_bit(r, &p[node]);
    return node - (1u << bits);
}

/* The same, the lowest first. */
static uint32_t decode_reverse_tree(range_decoder *r, probability *p, int bits) {
    uint32_t node = 1, value = 0;
    for (int i = 0; i < bits; i++) {
        const unsigned bit = decode_bit(r, &p[node]);
        node = node << 1 | bit;
        value |= (uint32_t)bit << i;
    }
    return value;
}

static uint32_t decode_length(range_decoder *r, length_coder *c, unsigned position) {
    if (!decode_bit(r, &c->beyond_low)) return MIN_MATCH + decode_tree(r, c->low[position], 3);
    if (!decode_bit(r, &c->beyond_middle)) return MIN_MATCH + 8 + decode_tree(r, c->middle[position], 3);
    return MIN_MATCH + 16 + decode_tree(r, c->high, 8);
}

/* The distance of a match less 1. */
static uint32_t decode_distance(range_decoder *r, probabilities *p, uint32_t length) {
    const uint32_t class = length - MIN_MATCH < DISTANCE_CLASSES ? length - MIN_MATCH : DISTANCE_CLASSES - 1;
    const uint32_t slot = decode_tree(r, p->slot[class], SLOT_BITS);
    if (slot < 4) return slot;
    const int bits = (int)(slot >> 1) - 1;
    const uint32_t distance = (2 | (slot & 1)) << bits;
    /* The tree of slot i has its node 1 at low_bits[distance - slot + 1]: trees lie one after the other. */
    if (slot < FIRST_DIRECT_SLOT) return distance + decode_reverse_tree(r, &p->low_bits[distance - slot], bits);
    const uint32_t high = decode_direct(r, bits - ALIGN_BITS) << ALIGN_BITS;
    return distance + high + decode_reverse_tree(r, p->align, ALIGN_BITS);
}

/* A literal after a match is coded beside the byte that the match would have gone on with. */
static unsigned char decode_literal(range_decoder *r, probability *p, int after_match, unsigned expected) {
    unsigned node = 1;
    while (after_match && node < 0x100) {
        const unsigned bit_expected = expected >> 7 & 1;
        expected <<= 1;
        const unsigned bit = decode_bit(r, &p[(1 + bit_expected) << 8 | node]);
        node = node << 1 | bit;
        if (bit != bit_expected) break;
    }
    while (node < 0x100) node = node << 1 | decode_bit(r, &p[node]);
    return (unsigned char)node;
}

int lzma_decode(const unsigned char *in, size_t in_bytes, unsigned char *out, size_t out_bytes) {
    if (in_bytes < 5 || in[0]) return 0;
    range_decoder r = {.in = in + 1, .end = in + in_bytes, .range = UINT32_MAX};
    for (int i = 0; i < 4; i++) r.code = r.code << 8 | next_byte(&r);
    probabilities p;
    for (size_t i = 0; i < sizeof p / sizeof(probability); i++) ((probability *)&p)[i] = HALF;

    uint32_t last[4] = {0}; /* distances of the last matches, less 1 */
    unsigned state = 0;
    for (size_t at = 0; at < out_bytes;) {
        const unsigned position = at & (POSITIONS - 1);
        if (r.ended) return 0;
        if (!decode_bit(&r, &p.is_match[state][position])) {
            const unsigned before = at ? out[at - 1] : 0;
            const int after_match = state >= FIRST_STATE_AFTER_MATCH;
            const unsigned expected = after_match ? out[at - last[0] - 1] : 0;
            probability *coder = p.literal + (size_t)LITERAL_CODER * (before >> (8 - LZMA_LC));
            out[at++] = decode_literal(&r, coder, after_match, expected);
            state = state < 4 ? 0 : state < 10 ? state - 3 : state - 6;
            continue;
        }
        uint32_t length;
        if (!decode_bit(&r, &p.is_repeated[state])) {
            length = decode_length(&r, &p.match_length, position);
            const uint32_t distance = decode_distance(&r, &p, length);
            last[3] = last[2], last[2] = last[1], last[1] = last[0], last[0] = distance;
            state = state < FIRST_STATE_AFTER_MATCH ? 7 : 10;
        } else {
            int which = 0;
            length = 0;
            if (decode_bit(&r, &p.is_repeated_1_to_3[state]))
                which = !decode_bit(&r, &p.is_repeated_2_or_3[state]) ? 1
                        : decode_bit(&r, &p.is_repeated_3[state])     ? 3
                                                                      : 2;
            else if (!decode_bit(&r, &p.is_longer_than_1[state][position]))
                length = 1;
            const uint32_t distance = last[which];
            for (; which > 0; which--) last[which] = last[which - 1];
            last[0] = distance;
            if (length == 1) {
                state = state < FIRST_STATE_AFTER_MATCH ? 9 : 11;
            } else {
                length = decode_length(&r, &p.repeated_length, position);
                state = state < FIRST_STATE_AFTER_MATCH ? 8 : 11;
            }
        }
        if (last[0] >= at || length > out_bytes - at) return 0; /* the end mark, too, has a distance of 2^32 */
        for (const size_t end = at + length; at < end; at++) out[at] = out[at - last[0] - 1];
    }
    return !r.ended;
}
