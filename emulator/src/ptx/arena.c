/* Memory that belongs to a module and is freed with it. */
#include <stdlib.h>
#include <string.h>

#include "ptx/syntax.h"

#define CHUNK_BYTES ((size_t)1 << 18)

typedef struct chunk {
    struct chunk *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
} chunk;

struct arena {
    chunk *chunks;
};

arena *arena_create(void) {
    return calloc(1, sizeof(arena));
}

void arena_destroy(arena *a) {
    if (!a) return;
    for (chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}

void *arena_alloc(arena *a, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    chunk *c = a->chunks;
    if (!c || c->size - c->used < bytes) {
        size_t size = bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES;
        c = calloc(1, sizeof(chunk) + size);
        if (!c) abort();
        c->size = size;
        if (size == bytes && a->chunks) { /* a large one stands behind the chunk that still has room */
            c->next = a->chunks->next;
            a->chunks->next = c;
        } else {
            c->next = a->chunks;
            a->chunks = c;
        }
    }
    void *result = c->bytes + c->used;
    c->used += bytes;
    return result;
}

const char *arena_text(arena *a, const char *text, size_t length) {
    char *copy = arena_alloc(a, length + 1);
    memcpy(copy, text, length);
    return copy;
}
