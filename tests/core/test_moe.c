/* The steps around experts from C: a token's way to its experts and back, with tensors that begin and end where a
 * sanitizer sees it, and what only a C program can pass: numbers of no activation. Prints "N passed, N failed". */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvfp4.h"

static int passed, failed;

static void expect(int holds, const char *rule) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds) printf("FAILED: %s (%s)\n", rule, nvfp4_last_error());
}

enum { S = 5, K = 3, E = 4, N = 13 };

static void *filled(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) abort();
    return memset(memory, 0x77, bytes);
}

static nvfp4_tensor table(void *data, nvfp4_dtype dtype, int64_t rows, int64_t columns) {
    return (nvfp4_tensor){.data = data,
                          .dtype = dtype,
                          .device = NVFP4_HOST,
                          .ndim = 2,
                          .shape = {rows, columns},
                          .stride = {columns, 1}};
}

static nvfp4_tensor vector(void *data, int64_t length) {
    return (nvfp4_tensor){
        .data = data, .dtype = NVFP4_INT32, .device = NVFP4_HOST, .ndim = 1, .shape = {length}, .stride = {1}};
}

static void check_way(nvfp4_context *context) {
    static const int64_t chosen[S * K] = {3, 0, 3, -1, 4, 0, 1, 1, 1, INT64_MIN, INT64_MAX, 1LL << 32, 0, 3, 1};
    static const int32_t rows_wanted[S * K] = {0, 1, 4, 2, 2, 2, 4, 0, 0, 4}, ends_wanted[E] = {3, 7, 7, 10};
    static const int32_t places_wanted[S * K] = {7, 0, 8, -1, -1, 1, 3, 4, 5, -1, -1, -1, 2, 9, 6};
    int64_t *ids = filled(sizeof chosen);
    int32_t *rows = filled(S * K * 4), *ends = filled(E * 4), *places = filled(S * K * 4);
    float *y = filled(S * K * N * 4), *weights = filled(S * K * 4), *out = filled(S * N * 4);
    memcpy(ids, chosen, sizeof chosen);
    nvfp4_moe_route_args route = NVFP4_MOE_ROUTE_ARGS;
    route.ids = table(ids, NVFP4_INT64, S, K);
    route.rows = vector(rows, S * K);
    route.ends = vector(ends, E);
    route.places = table(places, NVFP4_INT32, S, K);
    expect(nvfp4_moe_route(context, &route) == NVFP4_OK, "choices are sorted");
    expect(!memcmp(rows, rows_wanted, sizeof rows_wanted), "rows");
    expect(!memcmp(ends, ends_wanted, sizeof ends_wanted), "ends");
    expect(!memcmp(places, places_wanted, sizeof places_wanted), "places");

    for (int i = 0; i < S * K * N; i++) y[i] = (float)(i / N);
    for (int i = 0; i < S * K; i++) weights[i] = (float)(1 + i % K);
    nvfp4_moe_combine_args combine = NVFP4_MOE_COMBINE_ARGS;
    combine.y = table(y, NVFP4_FP32, S * K, N);
    combine.places = route.places;
    combine.weights = table(weights, NVFP4_FP32, S, K);
    combine.out = table(out, NVFP4_FP32, S, N);
    expect(nvfp4_moe_combine(context, &combine) == NVFP4_OK, "rows are added");
    for (int t = 0; t < S; t++) {
        float sum = 0;
        for (int j = 0; j < K; j++)
            if (places[t * K + j] >= 0) sum += (float)(1 + j) * (float)places[t * K + j];
        expect(out[t * N] == sum && out[t * N + N - 1] == sum, "a token's sum");
    }
    route.ends.shape[0] = 0;
    expect(nvfp4_moe_route(context, &route) == NVFP4_INVALID &&
               !strcmp(nvfp4_last_error(), "E: is 0; must be between 1 and 1024"),
           "no experts");
    route.ends.shape[0] = E;
    route.rows.shape[0]--;
    expect(
        nvfp4_moe_route(context, &route) == NVFP4_INVALID &&
            !strcmp(nvfp4_last_error(), "rows: has 14 elements in 1 dimension; must be a vector of length S * k = 15"),
        "rows are S * k");
    route.rows = vector(rows, S * K);
    route.places.stride[0] = 1;
    expect(nvfp4_moe_route(context, &route) == NVFP4_INVALID && strstr(nvfp4_last_error(), "places: rows overlap"),
           "places do not overlap");
    route.places = table(places, NVFP4_INT32, S - 1, K);
    expect(nvfp4_moe_route(context, &route) == NVFP4_INVALID &&
               !strcmp(nvfp4_last_error(), "places: is 4 x 3; must be as ids, 5 x 3"),
           "places are as ids");
    route.places = table(places, NVFP4_INT32, 2, 2);
    route.ids = table(ids, NVFP4_INT64, 2, 2);
    route.rows = vector(rows, 4);
    route.places.stride[0] = 3;
    expect(nvfp4_moe_route(context, &route) == NVFP4_INVALID &&
               !strcmp(nvfp4_last_error(), "places: is not contiguous; must be"),
           "places are contiguous");
    route.places.stride[0] = 2;
    route.rows.stride[0] = 2;
    expect(nvfp4_moe_route(context, &route) == NVFP4_INVALID &&
               !strcmp(nvfp4_last_error(), "rows: is not contiguous; must be"),
           "rows are contiguous");
    free(ids), free(rows), free(ends), free(places), free(y), free(weights), free(out);
}

/* Ids that another thread changes from the first expert to the last while they are sorted. */
enum { CHANGING = 4096, EXPERTS = 64, CALLS = 200 };

typedef struct changing {
    _Atomic int64_t *ids;
    atomic_int ends;
} changing;

static void *change(void *argument) {
    changing *c = argument;
    for (int64_t id = 0; !c->ends; id = EXPERTS - 1 - id)
        for (int i = 0; i < CHANGING; i++) atomic_store_explicit(&c->ids[i], id, memory_order_relaxed);
    return NULL;
}

static void check_changing_ids(nvfp4_context *context) {
    changing c = {.ids = filled(CHANGING * 8)};
    for (int i = 0; i < CHANGING; i++) c.ids[i] = 0;
    int32_t *rows = filled(CHANGING * 4), *ends = filled(EXPERTS * 4), *places = filled(CHANGING * 4);
    nvfp4_moe_route_args route = NVFP4_MOE_ROUTE_ARGS;
    route.ids = table((void *)c.ids, NVFP4_INT64, CHANGING, 1);
    route.rows = vector(rows, CHANGING), route.ends = vector(ends, EXPERTS);
    route.places = table(places, NVFP4_INT32, CHANGING, 1);
    pthread_t other;
    if (pthread_create(&other, NULL, change, &c)) abort();
    int changed = 0, outside = 0;
    for (int call = 0; call < CALLS; call++) {
        if (nvfp4_moe_route(context, &route)) abort();
        for (int i = 0; i < CHANGING; i++) {
            changed += places[i] == -1; /* its expert had no place left */
            outside += places[i] < -1 || places[i] >= ends[EXPERTS - 1] || rows[i] < 0 || rows[i] >= CHANGING;
        }
    }
    c.ends = 1;
    pthread_join(other, NULL);
    expect(outside == 0, "places and rows of changing ids are inside");
    printf("%d ids had changed\n", changed);
    free((void *)c.ids), free(rows), free(ends), free(places);
}

static void check_gated(nvfp4_context *context) {
    float *gate = filled(S * N * 4), *out = filled(S * N * 4);
    for (int i = 0; i < S * N; i++) gate[i] = (float)(i - 30);
    nvfp4_gated_args args = NVFP4_GATED_ARGS;
    args.gate = table(gate, NVFP4_FP32, S, N);
    args.out = table(out, NVFP4_FP32, S, N);
    args.activation = NVFP4_RELU2;
    expect(nvfp4_gated(context, &args) == NVFP4_OK && out[0] == 0 && out[S * N - 1] == 34.0f * 34.0f, "relu2");
    memset(out, 0x77, S * N * 4);
    const int numbers[] = {-1, INT32_MIN, NVFP4_SWIGLU + 1, INT32_MAX};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char message[160];
        const char *rule = "must be silu (0), gelu_tanh (1), relu2 (2) or swiglu (3)";
        args.activation = (nvfp4_activation)numbers[i];
        snprintf(message, sizeof message, "activation: is %d; %s", numbers[i], rule);
        expect(nvfp4_gated(context, &args) == NVFP4_INVALID && !strcmp(nvfp4_last_error(), message), message);
    }
    float untouched;
    memset(&untouched, 0x77, 4);
    expect(out[0] == untouched && out[S * N - 1] == untouched, "nothing is written");
    free(gate), free(out);
}

int main(void) {
    nvfp4_context *context = NULL;
    if (nvfp4_create(&context)) return 1;
    check_way(context);
    check_changing_ids(context);
    check_gated(context);
    nvfp4_destroy(context);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
