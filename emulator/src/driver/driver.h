/* State of the emulated driver, shared by the files of driver/. */
#ifndef EMULATOR_DRIVER_H
#define EMULATOR_DRIVER_H

#include "driver/abi.h"
#include "machine/machine.h"

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
    char *file; /* the name that the module's messages have, where it came from a file */
};

struct stream {
    unsigned flags;
    int priority;
};

struct event {
    uint64_t nanoseconds; /* 0: not recorded yet */
    unsigned flags;
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
    lanes_order lanes;
    int tmem_base;
    char *trace_path;
    char *error;       /* the last message: of a fault, or why a call was rejected */
    CUresult error_of; /* the one code that the message is for; CUDA_SUCCESS: any */
    int queued;
} driver_state;

extern driver_state driver;

/* Every entry point that touches the state runs between these. */
void driver_lock(void);
void driver_unlock(void);
/* The error of a fault, which sticks, as on hardware; CUDA_SUCCESS: there was none. */
CUresult driver_sticky(void);
/* Runs what is queued. CUDA_SUCCESS, or the sticky error of a fault. */
CUresult driver_flush(void);
/* Keeps a message for cuGetErrorString and prints it. Returns the code. Takes the message, which is malloc'd. */
CUresult driver_reject(CUresult code, char *message);
CUresult driver_rejectf(CUresult code, const char *message, ...) __attribute__((format(printf, 2, 3)));
/* The same for a program that may go on: the message is not printed, and is for this code alone. */
CUresult driver_decline(CUresult code, char *message);
/* Settings from EMULATE_... variables, once. */
void driver_open(void);
const char *driver_wrong_setting(const char *name, const char *value);

/* A file's bytes, ended by 0; malloc'd. NULL: it cannot be read. */
char *driver_read_file(const char *path, size_t *bytes);

API void emulator_reset(void);

/* Handles that a caller may pass (handles.c). An unknown or destroyed handle is rejected, not dereferenced. */
typedef enum { HANDLE_MODULE = 1, HANDLE_KERNEL, HANDLE_STREAM, HANDLE_EVENT, HANDLE_LINK, HANDLE_POOL } handle_kind;
void handle_add(handle_kind kind, const void *p);
void handle_remove(const void *p);
int handle_known(handle_kind kind, const void *p);
static inline int is_stream(CUstream s) {
    return (uintptr_t)s <= 2 || handle_known(HANDLE_STREAM, s); /* 1: the legacy stream, 2: the thread's */
}

/* The first thing that every entry point does. */
#define READY                                                                                                          \
    do {                                                                                                               \
        if (!driver.initialized) return CUDA_ERROR_NOT_INITIALIZED;                                                    \
    } while (0)
#define NEED(condition)                                                                                                \
    do {                                                                                                               \
        READY;                                                                                                         \
        if (!(condition)) return CUDA_ERROR_INVALID_VALUE;                                                             \
    } while (0)
#define NEED_HANDLE(kind, handle)                                                                                      \
    do {                                                                                                               \
        READY;                                                                                                         \
        if (!handle_known(kind, handle)) return CUDA_ERROR_INVALID_HANDLE;                                             \
    } while (0)
#define NEED_STREAM(stream)                                                                                            \
    do {                                                                                                               \
        READY;                                                                                                         \
        if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;                                                      \
    } while (0)
#define NEED_DEVICE(device)                                                                                            \
    do {                                                                                                               \
        READY;                                                                                                         \
        if ((device) != 0) return CUDA_ERROR_INVALID_DEVICE;                                                           \
    } while (0)
#define ENTER                                                                                                          \
    driver_lock();                                                                                                     \
    CUresult result = CUDA_SUCCESS
#define LEAVE                                                                                                          \
    driver_unlock();                                                                                                   \
    return result

#endif
