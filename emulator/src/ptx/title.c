/* Names of kernels in messages: `scale<float>` for _Z5scaleIfEvPT_, without return type and parameters.
 *
 * libstdc++ demangles. It is opened at run time, since nothing else here needs C++; without it the mangled name
 * stays. CUTLASS's names demangle to thousands of characters, so template arguments are left out, innermost first,
 * until the name fits in TITLE_LENGTH. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "ptx/ptx.h"

enum { TITLE_LENGTH = 120, DEEPEST = 32 };

typedef char *demangle_function(const char *name, char *buffer, size_t *size, int *status);

static demangle_function *find_demangler(void) {
    static demangle_function *found;
    static int tried;
    if (tried) return found;
    tried = 1;
    void *symbol = dlsym(RTLD_DEFAULT, "__cxa_demangle"); /* a C++ program brings it */
    if (!symbol) {
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
        if (library) symbol = dlsym(library, "__cxa_demangle");
    }
    memcpy(&found, &symbol, sizeof found);
    return found;
}

/* The qualified name within `type ns::f<T>(parameters)`: from `*begin` to the end that is returned. */
static const char *qualified_name(const char *text, const char **begin) {
    static const char anonymous[] = "(anonymous namespace)";
    int depth = 0;
    *begin = text;
    for (const char *c = text; *c; c++) {
        if (!strncmp(c, anonymous, sizeof anonymous - 1)) {
            c += sizeof anonymous - 2;
            continue;
        }
        depth += *c == '<' || (depth && *c == '(');
        depth -= *c == '>' || (depth && *c == ')');
        if (depth) continue;
        if (*c == '(') return c;
        if (*c == ' ') *begin = c + 1;
    }
    return text + strlen(text);
}

/* Copies a name without the template arguments deeper than `most`. Returns its length; `out` may be too small. */
static size_t write_title(const char *begin, const char *end, int most, char *out, size_t size) {
    size_t length = 0, kept = 0;
    int depth = 0;
    for (const char *c = begin; c < end; c++) {
        const char *piece = c;
        size_t bytes = 1;
        depth -= *c == '>';
        if (depth > most) bytes = 0;
        depth += *c == '<';
        if (*c == '<' && depth == most + 1) piece = "<...", bytes = 4;
        if (length + bytes < size) {
            memcpy(out + length, piece, bytes);
            kept = length + bytes;
        }
        length += bytes;
    }
    out[kept] = '\0';
    return length;
}

const char *function_title(const function *f) {
    static char title[TITLE_LENGTH + 1];
    demangle_function *demangle = strncmp(f->name, "_Z", 2) ? NULL : find_demangler();
    int status = 0;
    char *text = demangle ? demangle(f->name, NULL, NULL, &status) : NULL;
    if (!text) return f->name;
    const char *begin, *end = qualified_name(text, &begin);
    int most = DEEPEST;
    while (write_title(begin, end, most, title, sizeof title) > TITLE_LENGTH && most > 0) most--;
    free(text);
    return title;
}
