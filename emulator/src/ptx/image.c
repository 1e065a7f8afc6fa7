/* Images of modules: PTX text, or fat binaries that contain PTX, which nvcc compresses with zstd or LZ4.
 *
 * A wrapper (magic 0x466243b1) points to a container (0xba55ed50) with entries of PTX text (kind 1) and machine code
 * (kind 2), each for one architecture. The driver API passes no sizes, so headers are trusted; contradicting fields
 * are rejected. */
#define _GNU_SOURCE /* asprintf */
#include "ptx/image.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define WRAPPER_MAGIC   0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u
#define ELF_MAGIC       0x464c457fu
#define MAX_IMAGE       ((uint64_t)1 << 31)

enum { KIND_PTX = 1, KIND_CODE = 2 };
enum { FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000, FLAG_ARCH_SPECIFIC = 0x100000, FLAG_FAMILY = 0x200000 };

typedef struct wrapper {
    uint32_t magic, version;
    const uint8_t *container;
    const void *prelinked;
} wrapper;

typedef struct container {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t entries_bytes;
} container;

typedef struct fat_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t payload_bytes;
    uint32_t compressed_bytes, options;
    uint16_t minor, major;
    uint32_t arch, name, name_length;
    uint64_t flags, zero, text_bytes;
} fat_entry;

static char *rejected(char **error, const char *format, ...) __attribute__((format(printf, 2, 3)));
static char *rejected(char **error, const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (vasprintf(error, format, list) < 0) *error = NULL;
    va_end(list);
    return NULL;
}

/* ---- compression ---- */

/* A length of 15 goes on in bytes, the last of which is not 255. 0: the input ends first. */
static int lz4_length(const uint8_t **in, const uint8_t *end, size_t *length) {
    if (*length != 15) return 1;
    uint8_t byte;
    do {
        if (*in == end) return 0;
        byte = *(*in)++;
        *length += byte;
    } while (byte == 255);
    return 1;
}

/* One block of LZ4: tokens of literals and matches. 1: it gave exactly `size` bytes. */
static int lz4_block(const uint8_t *in, size_t bytes, uint8_t *out, size_t size) {
    const uint8_t *end = in + bytes;
    size_t at = 0;
    while (in < end) {
        uint8_t token = *in++;
        size_t literals = token >> 4, match = token & 15;
        if (!lz4_length(&in, end, &literals) || literals > (size_t)(end - in) || literals > size - at) return 0;
        memcpy(out + at, in, literals);
        in += literals;
        at += literals;
        if (in == end) break; /* the last token has no match */
        if (end - in < 2) return 0;
        size_t distance = (size_t)(in[0] | in[1] << 8);
        in += 2;
        if (!lz4_length(&in, end, &match)) return 0;
        match += 4;
        if (!distance || distance > at || match > size - at) return 0;
        for (; match; match--, at++) out[at] = out[at - distance]; /* it may overlap itself */
    }
    return at == size;
}

static int zstd_frame(const uint8_t *in, size_t bytes, uint8_t *out, size_t size, char **error) {
    static size_t (*decompress)(void *, size_t, const void *, size_t);
    if (!decompress) {
        void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
        void *symbol = library ? dlsym(library, "ZSTD_decompress") : NULL;
        if (!symbol) {
            rejected(error, "the PTX is compressed with zstd, and libzstd.so.1 cannot be opened here: install it, or "
                            "build with nvcc -Xfatbin -compress-mode=none");
            return 0;
        }
        memcpy(&decompress, &symbol, sizeof symbol);
    }
    if (decompress(out, size, in, bytes) == size) return 1;
    rejected(error, "the compressed PTX in the fatbin is damaged");
    return 0;
}

static char *payload_text(const fat_entry *e, const uint8_t *payload, char **error) {
    int compressed = (e->flags & (FLAG_LZ4 | FLAG_ZSTD)) != 0;
    uint64_t size = compressed ? e->text_bytes : e->payload_bytes;
    uint64_t bytes = e->compressed_bytes ? e->compressed_bytes : e->payload_bytes;
    if (size > MAX_IMAGE || bytes > e->payload_bytes)
        return rejected(error, "the fatbin is damaged: an entry of %llu bytes", (unsigned long long)size);
    char *text = malloc((size_t)size + 1);
    if (!text) return rejected(error, "there is no memory for %llu bytes of PTX", (unsigned long long)size);
    int good = 1;
    if (!compressed) {
        memcpy(text, payload, (size_t)size);
    } else if (e->flags & FLAG_ZSTD) {
        good = zstd_frame(payload, (size_t)bytes, (uint8_t *)text, (size_t)size, error);
    } else if (!lz4_block(payload, (size_t)bytes, (uint8_t *)text, (size_t)size)) {
        good = 0;
        rejected(error, "the compressed PTX in the fatbin is damaged");
    }
    if (!good) {
        free(text);
        return NULL;
    }
    text[size] = 0;
    return text;
}

/* ---- containers ---- */

/* How well PTX for this architecture fits: the device's own, its family's, then the newest that it can run. */
static int fitness(const fat_entry *e, const device *d) {
    int arch = (int)e->arch;
    if (e->flags & FLAG_ARCH_SPECIFIC) return arch == d->cc ? 3000 : 0;
    if (arch > d->cc) return 0;
    if (e->flags & FLAG_FAMILY) return arch / 10 == d->cc / 10 ? 2000 + arch : 0;
    return arch;
}

static void note(char *list, size_t size, const fat_entry *e) {
    size_t used = strlen(list);
    const char *suffix = e->flags & FLAG_ARCH_SPECIFIC ? "a" : e->flags & FLAG_FAMILY ? "f" : "";
    snprintf(list + used, size - used, "%s%s_%u%s", used ? ", " : "", e->kind == KIND_PTX ? "compute" : "sm", e->arch,
             suffix);
}

static char *from_container(const uint8_t *at, const device *d, char **error) {
    container c;
    memcpy(&c, at, sizeof c);
    if (c.magic != CONTAINER_MAGIC || c.header_bytes != sizeof c || c.entries_bytes > MAX_IMAGE)
        return rejected(error, "the fatbin is damaged: its header has magic 0x%x, %u bytes, and %llu bytes of entries",
                        c.magic, c.header_bytes, (unsigned long long)c.entries_bytes);
    const uint8_t *entry_at = at + c.header_bytes, *end = entry_at + c.entries_bytes, *best_payload = NULL;
    fat_entry best = {0};
    int best_fitness = 0, same = 0, ptx = 0, code = 0;
    char list[256] = "";
    while ((size_t)(end - entry_at) >= sizeof(fat_entry)) {
        fat_entry e;
        memcpy(&e, entry_at, sizeof e);
        uint64_t left = (uint64_t)(end - entry_at);
        if (e.header_bytes < sizeof e || e.header_bytes > left || e.payload_bytes > left - e.header_bytes)
            return rejected(error,
                            "the fatbin is damaged: an entry with a header of %u and a payload of %llu bytes, of "
                            "which %llu are there",
                            e.header_bytes, (unsigned long long)e.payload_bytes, (unsigned long long)left);
        if (e.kind == KIND_PTX || e.kind == KIND_CODE) note(list, sizeof list, &e);
        ptx += e.kind == KIND_PTX;
        code += e.kind == KIND_CODE;
        int fits = e.kind == KIND_PTX ? fitness(&e, d) : 0;
        same = fits > best_fitness ? 1 : same + (fits && fits == best_fitness);
        if (fits > best_fitness) {
            best_fitness = fits;
            best = e;
            best_payload = entry_at + e.header_bytes;
        }
        entry_at += e.header_bytes + e.payload_bytes;
    }
    if (same > 1)
        return rejected(error,
                        "the fatbin has several parts of PTX for compute_%u, which need a linker; build without "
                        "-rdc=true",
                        best.arch);
    if (best_payload) return payload_text(&best, best_payload, error);
    if (!ptx && !code)
        return rejected(error, "the fatbin is empty: with -rdc=true the PTX waits for a linker, which the emulator has "
                               "not; build without it");
    if (!ptx)
        return rejected(error,
                        "the fatbin has machine code only (%s): the emulator runs PTX, which nvcc puts in with "
                        "-gencode arch=compute_%d,code=compute_%d",
                        list, d->cc, d->cc);
    return rejected(error, "the fatbin has nothing that %s runs: it has %s", d->key, list);
}

char *image_ptx(const void *image, const device *d, char **error) {
    uint32_t magic = 0;
    if (!image) return rejected(error, "the image is a null pointer");
    /* text may be shorter than four bytes, and ends where it ends */
    const char *start = image;
    for (size_t i = 0; i < sizeof magic; i++) {
        magic |= (uint32_t)(uint8_t)start[i] << 8 * i;
        if (!start[i]) break;
    }
    if (magic == WRAPPER_MAGIC) {
        wrapper w;
        memcpy(&w, image, sizeof w);
        if ((w.version != 1 && w.version != 2) || !w.container)
            return rejected(error, "the wrapper of the fatbin has version %u, which is not known", w.version);
        return from_container(w.container, d, error);
    }
    if (magic == CONTAINER_MAGIC) return from_container(image, d, error);
    if (magic == ELF_MAGIC)
        return rejected(error,
                        "the image is machine code (a cubin): the emulator runs PTX, as from nvcc -ptx or "
                        "-gencode arch=compute_%d,code=compute_%d",
                        d->cc, d->cc);
    for (size_t i = 0; i < 64 && start[i]; i++)
        if ((unsigned char)start[i] < ' ' && !strchr("\t\n\v\f\r", start[i]))
            return rejected(error, "the image is neither PTX nor a fatbin: it begins with 0x%08x", magic);
    char *text = strdup(start);
    return text ? text : rejected(error, "there is no memory for the PTX");
}
