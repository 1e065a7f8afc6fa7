/* The action when this thread touches an unmapped address (guard.c). One thread at a time uses it: the one that
 * holds the driver's lock. */
#ifndef EMULATOR_GUARD_H
#define EMULATOR_GUARD_H

/* Gets the address; must not return. */
typedef void guard_function(const void *address);
void guard_begin(guard_function *f);
void guard_end(void);
/* Runs the work. NULL, or the address that it stopped at. */
const void *guarded(void (*work)(void *), void *argument);

#endif
