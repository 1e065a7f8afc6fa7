/* Finds the PTX in a module's image. */
#ifndef EMULATOR_IMAGE_H
#define EMULATOR_IMAGE_H

#include "machine/machine.h"

/* `image` is PTX text, a fatbin, or the wrapper that nvcc puts into programs. Returns the PTX that fits the device
 * best, ended by a zero byte, malloc'd; NULL: *error is a message, malloc'd. */
char *image_ptx(const void *image, const device *d, char **error);

#endif
