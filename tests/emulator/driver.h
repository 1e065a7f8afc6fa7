/* The emulated driver's state, which its parts (driver_*.c) share. */
#ifndef EMULATOR_DRIVER_H
#define EMULATOR_DRIVER_H

#include "driver_abi.h"
#include "emulator.h"

#define API            __attribute__((visibility("default")))
#define DRIVER_VERSION 13000

struct kernel {
    entry *entry;
    struct loaded *in;
    int attributes[FUNCTION_ATTRIBUTES];
    struct kernel *next;
};

struct loaded {
    module *module;
    struct kernel *kernels;
};

struct queue {
    unsigned flags;
    int priority;
};

struct event {
    uint64_t nanoseconds;
};

struct context {
    CUdevice device;
};

typedef struct {
    machine *machine;
    const device *device;
    struct context primary;
    int initialized, quiet;
    uint64_t seed;
    arithmetic arithmetic;
    fences fences;
    int tmem_base;
    char *trace_path;
    char *error; /* the last sentence: of a fault, or why a call was refused */
    int queued;
} driver_state;

extern driver_state driver;

/* Every entry point that touches the state runs between these. */
void driver_lock(void);
void driver_unlock(void);
/* Runs what is queued. CUDA_SUCCESS, or the sticky error of a fault. */
CUresult driver_flush(void);
/* Keeps a sentence for cuGetErrorString and prints it. Returns the code. Takes the sentence, which is malloc'd. */
CUresult driver_refuse(CUresult code, char *sentence);
CUresult driver_refusef(CUresult code, const char *sentence, ...) __attribute__((format(printf, 2, 3)));
/* Settings from EMULATE_... variables, once. */
void driver_open(void);
const char *driver_wrong_setting(const char *name, const char *value);

#define ENTER                                                                                                          \
    driver_lock();                                                                                                     \
    CUresult result = CUDA_SUCCESS
#define LEAVE                                                                                                          \
    driver_unlock();                                                                                                   \
    return result

#endif
