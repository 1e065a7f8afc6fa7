/* The set of handles that the driver has given out and not taken back. A call with any other pointer is rejected,
 * never dereferenced. Open addressing with linear probing. */
#include <stdlib.h>

#include "driver/driver.h"

static struct {
    const void *p;
    handle_kind kind;
} *places;
static size_t capacity, used;

static size_t home_of(const void *p) {
    return (size_t)((uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u >> 32) & (capacity - 1);
}

static size_t place_of(const void *p) {
    size_t at = home_of(p);
    while (places[at].p && places[at].p != p) at = (at + 1) & (capacity - 1);
    return at;
}

static void grow(void) {
    size_t before = capacity;
    void *old = places;
    const struct {
        const void *p;
        handle_kind kind;
    } *from = old;
    capacity = capacity ? 2 * capacity : 256;
    places = calloc(capacity, sizeof *places);
    if (!places) abort();
    for (size_t i = 0; i < before; i++) {
        if (!from[i].p) continue;
        size_t at = place_of(from[i].p);
        places[at].p = from[i].p;
        places[at].kind = from[i].kind;
    }
    free(old);
}

void handle_add(handle_kind kind, const void *p) {
    driver_lock();
    if (2 * (used + 1) > capacity) grow();
    size_t at = place_of(p);
    used += !places[at].p;
    places[at].p = p;
    places[at].kind = kind;
    driver_unlock();
}

void handle_remove(const void *p) {
    driver_lock();
    size_t hole = capacity ? place_of(p) : 0;
    if (capacity && places[hole].p) {
        used--;
        /* those behind that probed across the hole move into it */
        for (size_t i = (hole + 1) & (capacity - 1); places[i].p; i = (i + 1) & (capacity - 1)) {
            size_t home = home_of(places[i].p);
            if (((i - home) & (capacity - 1)) < ((i - hole) & (capacity - 1))) continue;
            places[hole] = places[i];
            hole = i;
        }
        places[hole].p = NULL;
    }
    driver_unlock();
}

int handle_known(handle_kind kind, const void *p) {
    driver_lock();
    int known = p && capacity && places[place_of(p)].p == p && places[place_of(p)].kind == kind;
    driver_unlock();
    return known;
}
