/* Messages to the letter: which bytes of a quoted text count as a character, and a debug build's record of waits in a
 * buffer of every length. Prints "N passed, N failed". */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "driver/watchdog.h"

static int passed, failed;

__attribute__((format(printf, 2, 3))) static void expect(int holds, const char *rule, ...) {
    passed += !!holds, failed += !holds;
    if (holds) return;
    va_list arguments;
    va_start(arguments, rule);
    printf("FAILED: ");
    vprintf(rule, arguments);
    printf("\n");
    va_end(arguments);
}

/* Tests the first and the last character of each length, what lies beside them, and sequences that are cut. */
static void test_utf8(void) {
    static const char *const cases[][2] = {
        {"\x7F", "\x7F"},
        {"\xC2\x80", "\xC2\x80"},
        {"\xDF\xBF", "\xDF\xBF"},
        {"\xE0\xA0\x80", "\xE0\xA0\x80"},
        {"\xED\x9F\xBF", "\xED\x9F\xBF"}, /* before the surrogates */
        {"\xEE\x80\x80", "\xEE\x80\x80"}, /* behind them */
        {"\xEF\xBF\xBF", "\xEF\xBF\xBF"},
        {"\xF0\x90\x80\x80", "\xF0\x90\x80\x80"},
        {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"}, /* U+10FFFF */
        {"\xF4\x90\x80\x80", "????"},             /* U+110000 */
        {"\xF8\x88\x80\x80\x80", "?????"},
        {"\x80", "?"},
        {"\xBF", "?"},
        {"\xC1\xBF", "??"},           /* U+7F by two bytes */
        {"\xE0\x9F\xBF", "???"},      /* U+7FF by three */
        {"\xF0\x8F\xBF\xBF", "????"}, /* U+FFFF by four */
        {"\xED\xA0\x80", "???"},      /* the first surrogate */
        {"\xED\xBF\xBF", "???"},      /* the last */
        {"\xC3", "?"},
        {"\xE2\x82", "??"},
        {"\xF0\x9F\x98", "???"},
        {"\xC3(", "?("},
        {"a\xFF z\xC3\xA9", "a? z\xC3\xA9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(fail(NVFP4_INVALID, "%s", cases[i][0]) == NVFP4_INVALID, "fail returns the status");
        expect(!strcmp(nvfp4_last_error(), cases[i][1]), "text %zu is not what it should be", i);
    }
    clear_error();
    expect(!*nvfp4_last_error(), "clear_error leaves no text");
}

static watchdog_wait wait_at(int32_t kind, int32_t line, const char *file) {
    watchdog_wait wait = {.kind = kind,
                          .line = line,
                          .cta_x = 1,
                          .cta_y = 2,
                          .warp = 3,
                          .wanted = 1,
                          .seen = 0,
                          .polls = 77,
                          .address = 0x410};
    memcpy(wait.file, file, strlen(file));
    return wait;
}

/* In a buffer of b bytes stand the first b - 1 of the text; AddressSanitizer sees what is written behind it. */
static void test_watchdog(void) {
    static const char text[] =
        "gemm.cu:20: CTA (1, 2), warp 3: the mbarrier at shared address 0x410, parity 1, after 77 polls"
        " (and 2 more there); "
        "sixteen_bytes.cu:21: CTA (1, 2), warp 3: the flag at 0x410, 0 of 1 arrivals after 77 polls"
        " (and 1 more there); "
        "gemm.cu:22: CTA (1, 2), warp 3: barrier.cluster.wait; "
        "gemm.cu:23: CTA (1, 2), warp 3: griddepcontrol.wait (and 1 more there)";
    watchdog_record *record = calloc(1, sizeof *record);
    char whole[900] = "x";
    if (!record) exit(1);
    expect(watchdog_describe(record, whole, sizeof whole) == 0 && !*whole, "nothing is recorded");
    for (int i = 0; i < 3; i++) record->expired[i] = wait_at(WATCHDOG_MBARRIER, 20, "gemm.cu");
    for (int i = 3; i < 5; i++) record->expired[i] = wait_at(WATCHDOG_FLAG, 21, "sixteen_bytes.cu");
    record->blocked[0] = wait_at(WATCHDOG_CLUSTER, 22, "gemm.cu");
    record->blocked[7] = record->blocked[WATCHDOG_BLOCKED - 1] = wait_at(WATCHDOG_GRID, 23, "gemm.cu");
    expect(watchdog_describe(record, whole, sizeof whole) == 4, "four places");
    expect(!strcmp(whole, text), "the record reads: %s", whole);
    for (size_t bytes = 1; bytes <= sizeof text; bytes++) {
        char *const exact = malloc(bytes);
        if (!exact) exit(1);
        expect(watchdog_describe(record, exact, bytes) == 4, "four places in %zu bytes", bytes);
        expect(strlen(exact) == bytes - 1 && !memcmp(exact, text, bytes - 1), "%zu bytes are not filled", bytes);
        free(exact);
    }
    for (int i = 0; i < 12; i++) record->expired[i] = wait_at(WATCHDOG_MBARRIER, 100 + i, "gemm.cu");
    expect(watchdog_describe(record, whole, sizeof whole) == 8, "at most eight places");
    free(record);
}

int main(void) {
    test_utf8();
    test_watchdog();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
