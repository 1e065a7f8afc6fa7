#include "driver/watchdog.h"

#include <stdio.h>
#include <string.h>

enum { PLACES = 8 };

typedef struct place {
    const watchdog_wait *first;
    int32_t waits;
} place;

static int same_place(const watchdog_wait *a, const watchdog_wait *b) {
    return a->kind == b->kind && a->line == b->line && memcmp(a->file, b->file, sizeof a->file) == 0;
}

/* Adds what `waits` holds to the places; those beyond PLACES are left out. */
static int group(const watchdog_wait *waits, int32_t length, place *places, int count) {
    for (const watchdog_wait *wait = waits; wait < waits + length; wait++) {
        /* The GPU may still write: entries are complete when they have a kind. */
        if (*(const volatile int32_t *)&wait->kind == WATCHDOG_NONE) continue;
        int i = 0;
        while (i < count && !same_place(places[i].first, wait)) i++;
        if (i == PLACES) continue;
        if (i == count) places[count++] = (place){.first = wait};
        places[i].waits++;
    }
    return count;
}

static int describe(const place *p, char *text, size_t bytes) {
    const watchdog_wait *w = p->first;
    char what[96];
    switch (w->kind) {
    case WATCHDOG_MBARRIER:
        snprintf(what, sizeof what, "the mbarrier at shared address 0x%llx, parity %u, after %u polls",
                 (unsigned long long)w->address, w->wanted, w->polls);
        break;
    case WATCHDOG_FLAG:
        snprintf(what, sizeof what, "the flag at 0x%llx, %u of %u arrivals after %u polls",
                 (unsigned long long)w->address, w->seen, w->wanted, w->polls);
        break;
    case WATCHDOG_CLUSTER:
        snprintf(what, sizeof what, "barrier.cluster.wait");
        break;
    default:
        snprintf(what, sizeof what, "griddepcontrol.wait");
    }
    int length = snprintf(text, bytes, "%.*s:%d: CTA (%u, %u), warp %u: %s", WATCHDOG_FILE_BYTES, w->file, w->line,
                          w->cta_x, w->cta_y, w->warp, what);
    if (p->waits > 1 && length < (int)bytes)
        length += snprintf(text + length, bytes - (size_t)length, " (and %d more there)", p->waits - 1);
    return length;
}

int watchdog_describe(const watchdog_record *record, char *text, size_t bytes) {
    place places[PLACES];
    int count = group(record->expired, WATCHDOG_EXPIRED, places, 0);
    count = group(record->blocked, WATCHDOG_BLOCKED, places, count);
    size_t length = 0;
    *text = 0;
    for (int i = 0; i < count && length < bytes; i++) {
        if (i) length += (size_t)snprintf(text + length, bytes - length, "; ");
        if (length < bytes) length += (size_t)describe(&places[i], text + length, bytes - length);
    }
    return count;
}
