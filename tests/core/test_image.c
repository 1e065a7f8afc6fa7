/* The images in the library: which one suits a GPU, and the decoder of their compression, on whole and damaged data.
 * Prints "N passed, N failed". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/image.h"
#include "driver/lzma.h"

static int passed, failed;

static void expect(int holds, const char *rule) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds) printf("FAILED: %s\n", rule);
}

/* That of these architectures, separated by spaces, that suits a GPU best; "": none. */
static const char *best(const char *archs, int32_t capability) {
    static char text[100], found[20];
    int most = 0;
    found[0] = 0;
    snprintf(text, sizeof text, "%s", archs);
    for (const char *arch = strtok(text, " "); arch; arch = strtok(NULL, " ")) {
        const int fitness = image_fitness(arch, capability);
        if (fitness > most) snprintf(found, sizeof found, "%s", arch);
        if (fitness > most) most = fitness;
    }
    return found;
}

static void check_fitness(void) {
    static const struct {
        const char *archs;
        int32_t capability;
        const char *best;
    } cases[] = {
        {"sm_80 sm_89 sm_90 sm_100 sm_120 compute_80 compute_90", 75, ""},
        {"sm_80 sm_89 sm_90 sm_100 sm_120 compute_80 compute_90", 80, "sm_80"},
        {"sm_80 sm_89 sm_90 sm_100 sm_120 compute_80 compute_90", 86, "sm_80"},
        {"sm_80 sm_89 sm_90 sm_100 sm_120 compute_80 compute_90", 89, "sm_89"},
        {"sm_80 sm_89 sm_90 sm_100 sm_120 compute_80 compute_90", 90, "sm_90"},
        {"sm_80 sm_89 sm_90 sm_100 sm_120 compute_80 compute_90", 103, "sm_100"},
        {"sm_80 sm_89 sm_90 sm_100 sm_120 compute_80 compute_90", 110, "compute_90"},
        {"sm_80 sm_89 sm_90 sm_100 sm_120 compute_80 compute_90", 121, "sm_120"},
        {"compute_80 compute_90", 89, "compute_80"},
        {"sm_90a compute_90a", 90, "sm_90a"},
        {"sm_90a compute_90a", 100, ""},
        {"sm_100f compute_100f compute_110f", 100, "sm_100f"},
        {"sm_100f compute_100f compute_110f", 103, "sm_100f"},
        {"sm_100f compute_100f compute_110f", 110, "compute_110f"},
        {"sm_100f compute_100f compute_110f", 120, ""},
        {"sm_120f compute_120f", 121, "sm_120f"},
        {"sm_90 sm_90a compute_90", 90, "sm_90a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(!strcmp(best(cases[i].archs, cases[i].capability), cases[i].best), cases[i].archs);
}

/* The result of text(), compressed by Python's lzma with the parameters of nvfp4_cuda.COMPRESSION. */
static const unsigned char compressed[] = {
    0,   26,  14,  66,  140, 100, 211, 126, 99,  22,  230, 202, 47,  237, 118, 212, 109, 112, 181, 127, 43,  217, 165,
    158, 110, 145, 0,   79,  184, 158, 96,  81,  36,  173, 14,  90,  7,   248, 226, 180, 122, 80,  2,   213, 254, 136,
    93,  26,  103, 226, 193, 227, 60,  49,  140, 252, 171, 202, 38,  149, 89,  96,  224, 161, 71,  93,  223, 130, 27,
    253, 26,  89,  183, 226, 36,  87,  47,  252, 210, 225, 3,   205, 130, 48,  59,  134, 66,  17,  180, 178, 80,  17,
    190, 142, 215, 9,   79,  63,  39,  18,  154, 192, 235, 130, 207, 221, 193, 166, 63,  132, 95,  226, 113, 61,  77,
    227, 52,  56,  56,  133, 252, 236, 203, 116, 30,  222, 110, 218, 86,  77,  124, 97,  94,  250, 161, 220, 34,  186,
    56,  120, 107, 170, 105, 51,  61,  154, 164, 141, 222, 201, 66,  107, 87,  105, 244, 94,  175, 84,  4,   248, 28,
    229, 221, 193, 181, 193, 134, 50,  142, 88,  195, 192, 255, 253, 20,  101, 224};
enum { TEXT_BYTES = 20000 };

static void text(unsigned char *out) {
    uint32_t x = 1;
    for (int i = 0; i < TEXT_BYTES; i++) {
        x = x * 1103515245u + 12345u;
        const int fresh = i < 60 || i % 1999 < 3;
        out[i] = fresh ? (unsigned char)"0123456789abcdef"[x >> 28] : i % 7000 > 6900 ? out[i - 6000] : out[i - 37];
    }
}

/* In memory of exactly these sizes, so that a sanitizer sees each byte beyond. */
static int decode(const unsigned char *in, size_t in_bytes, unsigned char *out, size_t out_bytes) {
    unsigned char *from = malloc(in_bytes ? in_bytes : 1), *to = malloc(out_bytes ? out_bytes : 1);
    if (!from || !to) abort();
    memcpy(from, in, in_bytes);
    const int done = lzma_decode(from, in_bytes, to, out_bytes);
    if (done && out) memcpy(out, to, out_bytes);
    free(from);
    free(to);
    return done;
}

static void check_decoder(unsigned seed) {
    static unsigned char expected[TEXT_BYTES], found[TEXT_BYTES], damaged[sizeof compressed];
    text(expected);
    expect(decode(compressed, sizeof compressed, found, TEXT_BYTES) && !memcmp(found, expected, TEXT_BYTES), "a text");
    expect(!decode(compressed, sizeof compressed, NULL, TEXT_BYTES + 1), "one byte more than there is");
    int shorter = 0;
    for (size_t bytes = 0; bytes < sizeof compressed - 16; bytes++)
        shorter += decode(compressed, bytes, NULL, TEXT_BYTES);
    expect(shorter == 0, "cut off");
    int same = 0;
    for (unsigned trial = 0; trial < 2000; trial++) {
        memcpy(damaged, compressed, sizeof damaged);
        seed = seed * 1103515245u + 12345u;
        damaged[(seed >> 8) % sizeof damaged] ^= (unsigned char)(1u << (seed >> 28 & 7));
        same += decode(damaged, sizeof damaged, found, TEXT_BYTES) && !memcmp(found, expected, TEXT_BYTES);
    }
    expect(same < 400, "most damage is seen or changes the text"); /* the last bytes end the stream alone */
}

int main(int argc, char **argv) {
    check_fitness();
    check_decoder(argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
