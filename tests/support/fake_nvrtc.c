/* An NVRTC that compiles nothing: PTX and cubin are the options and the source. Each compilation adds the name of its
 * source to $FAKE_NVRTC/log. The source says what else happens, by a word in it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef MINOR
#define MINOR 9
#endif
#define API __attribute__((visibility("default")))

static char text[1 << 16], message[64];
static const char *source, *name; /* copies, as NVRTC makes them */

API int nvrtcVersion(int *major, int *minor) {
    *major = 12;
    *minor = MINOR;
    return 0;
}

API int nvrtcCreateProgram(void **program, const char *source_, const char *name_, int headers, const char **texts,
                           const char **names) {
    (void)headers, (void)texts, (void)names;
    source = strdup(source_);
    name = strdup(name_);
    *program = text;
    return 0;
}

static void add(const char *file, const char *line) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVRTC"), file);
    FILE *out = fopen(path, "a");
    if (!out) abort();
    fprintf(out, "%s\n", line);
    fclose(out);
}

API int nvrtcCompileProgram(void *program, int count, const char **options) {
    (void)program;
    add("log", strrchr(name, '/') + 1);
    for (int i = 0; i < count; i++)
        if (strncmp(options[i], "-I", 2)) strcat(strcat(text, options[i]), "\n");
    strcat(strcat(text, ".version 8.8\n.target sm_100f\n"), source);
    if (strstr(source, "SLOW")) usleep(1000 * (unsigned)(getpid() % 60));
    if (strstr(source, "EDITED")) add("kernels/deep.h", "// edited meanwhile");
    if (strstr(source, "KILLED")) kill(getppid(), SIGKILL), kill(getpid(), SIGKILL);
    if (strstr(source, "WARNED")) strcpy(message, "a warning");
    return strstr(source, "WRONG") ? 6 : 0;
}

API int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
    (void)program;
    *bytes = strlen(message) + 1;
    return 0;
}

API int nvrtcGetProgramLog(void *program, char *out) {
    (void)program;
    strcpy(out, message);
    return 0;
}

API int nvrtcGetPTXSize(void *program, size_t *bytes) {
    (void)program;
    *bytes = strlen(text) + 1;
    return 0;
}

API int nvrtcGetPTX(void *program, char *out) {
    (void)program;
    strcpy(out, text);
    return 0;
}

API int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    return nvrtcGetPTXSize(program, bytes);
}

API int nvrtcGetCUBIN(void *program, char *out) {
    return nvrtcGetPTX(program, out);
}
