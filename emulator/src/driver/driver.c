/* Driver API: settings, the machine, errors. Launches are queued until something waits for them, so that dependent
 * grids can overlap. All streams share one queue, in the order of the calls.
 *
 * Settings (README): EMULATE_DEVICE, EMULATE_SEED, EMULATE_ARITHMETIC, EMULATE_FENCES, EMULATE_TRACE,
 * EMULATE_LANES, EMULATE_TMEM_BASE, EMULATE_HOST_MEMORY, EMULATE_QUIET; or emulator_configure from the same process. */
#define _GNU_SOURCE /* asprintf, recursive mutex */
#include "driver/driver.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

driver_state driver;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
void driver_lock(void) {
    pthread_mutex_lock(&lock);
}
void driver_unlock(void) {
    pthread_mutex_unlock(&lock);
}

CUresult driver_reject(CUresult code, char *message) {
    free(driver.error);
    driver.error = message;
    driver.error_of = CUDA_SUCCESS;
    if (!driver.quiet && message) fprintf(stderr, "emulator: %s\n", message);
    return code;
}

CUresult driver_decline(CUresult code, char *message) {
    free(driver.error);
    driver.error = message;
    return driver.error_of = code;
}

CUresult driver_rejectf(CUresult code, const char *message, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, message);
    if (vasprintf(&text, message, arguments) < 0) text = NULL;
    va_end(arguments);
    return driver_reject(code, text);
}

/* cuGetErrorString gives the fault's message, even if calls were rejected since. */
CUresult driver_sticky(void) {
    if (!driver.machine || !driver.machine->error) return CUDA_SUCCESS;
    free(driver.error);
    driver.error = strdup(driver.machine->error);
    driver.error_of = CUDA_SUCCESS;
    return driver.machine->assertion_failed ? CUDA_ERROR_ASSERT : CUDA_ERROR_LAUNCH_FAILED;
}

CUresult driver_flush(void) {
    driver.queued = 0;
    if (driver.machine && !driver.machine->error && machine_run(driver.machine))
        driver_reject(CUDA_ERROR_LAUNCH_FAILED, strdup(driver.machine->error));
    return driver_sticky();
}

/* ---- settings ---- */

static void apply(machine *m) {
    machine_seed(m, driver.seed);
    m->arithmetic = driver.arithmetic;
    m->fences = driver.fences;
    m->lanes = driver.lanes;
    m->tmem_base = driver.tmem_base;
}

static int set_number(uint64_t *out, const char *value) {
    char *end;
    *out = strtoull(value, &end, 0);
    return *value && !*end;
}

/* The first one, or one that follows another. */
static void start_machine(void) {
    machine *before = driver.machine;
    driver.machine = machine_create(driver.device);
    if (!driver.machine) abort();
    apply(driver.machine);
    if (before) {
        trace_move(before, driver.machine);
        machine_destroy(before);
    } else if (driver.trace_path) {
        trace_begin(driver.machine, driver.trace_path);
    }
}

/* NULL, or what is wrong with the value. */
const char *driver_wrong_setting(const char *name, const char *value) {
    uint64_t number = 0;
    int is_number = set_number(&number, value);
    if (!strcmp(name, "device")) {
        const device *d = device_by_key(value);
        if (!d) return "must be sm_80, sm_90, sm_100 or sm_120";
        int other = d != driver.device;
        driver.device = d;
        if (driver.machine && other) start_machine();
    } else if (!strcmp(name, "seed")) {
        if (!is_number) return "must be a number";
        driver.seed = number;
    } else if (!strcmp(name, "arithmetic")) {
        if (strcmp(value, "hardware") != 0 && strcmp(value, "fp64") != 0) return "must be hardware or fp64";
        driver.arithmetic = strcmp(value, "fp64") ? ARITHMETIC_HARDWARE : ARITHMETIC_FP64;
    } else if (!strcmp(name, "fences")) {
        if (strcmp(value, "text") != 0 && strcmp(value, "hardware") != 0) return "must be text or hardware";
        driver.fences = strcmp(value, "hardware") ? FENCES_TEXT : FENCES_HARDWARE;
    } else if (!strcmp(name, "lanes")) {
        if (strcmp(value, "together") != 0 && strcmp(value, "apart") != 0) return "must be together or apart";
        driver.lanes = strcmp(value, "apart") ? LANES_TOGETHER : LANES_APART;
    } else if (!strcmp(name, "tmem_base")) {
        if (!is_number || number >= 512 || number % 32) return "must be a multiple of 32 below 512";
        driver.tmem_base = (int)number;
    } else if (!strcmp(name, "host_memory")) {
        if (!is_number || number > 1) return "must be 0 or 1";
        host_memory_allowed = (int)number;
    } else if (!strcmp(name, "quiet")) {
        if (!is_number || number > 1) return "must be 0 or 1";
        driver.quiet = (int)number;
    } else if (!strcmp(name, "trace")) {
        free(driver.trace_path);
        driver.trace_path = *value ? strdup(value) : NULL;
        if (driver.machine) {
            trace_end(driver.machine);
            if (driver.trace_path) trace_begin(driver.machine, driver.trace_path);
        }
    } else {
        return "is no setting: there are device, seed, arithmetic, fences, lanes, tmem_base, host_memory, trace and "
               "quiet";
    }
    if (driver.machine && strcmp(name, "trace") != 0) apply(driver.machine);
    return NULL;
}

static int opened;

void driver_open(void) {
    if (opened) return;
    opened = 1;
    driver.device = device_by_key(NULL);
    host_memory_allowed = 1;
    static const char *const names[] = {"device",    "seed",        "arithmetic", "fences", "lanes",
                                        "tmem_base", "host_memory", "quiet",      "trace"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char variable[64] = "EMULATE_";
        for (size_t j = 0; names[i][j]; j++)
            variable[8 + j] = (char)(names[i][j] >= 'a' && names[i][j] <= 'z' ? names[i][j] - 32 : names[i][j]);
        const char *value = getenv(variable), *wrong = value ? driver_wrong_setting(names[i], value) : NULL;
        if (wrong) {
            fprintf(stderr, "emulator: %s is `%s`; it %s\n", variable, value, wrong);
            exit(2); /* a run with another setting than the requested one would mislead */
        }
    }
}

/* Sets what EMULATE_<NAME> sets, from now on: "seed", "arithmetic", "fences", "trace" ... 0, or -1 and emulator_error.
 */
API int emulator_configure(const char *name, const char *value) {
    if (!name || !value) return -1;
    driver_lock();
    driver_open();
    if (driver.machine) driver_flush();
    const char *wrong = driver_wrong_setting(name, value);
    if (wrong) driver_rejectf(CUDA_ERROR_INVALID_VALUE, "%s is `%s`; it %s", name, value, wrong);
    driver_unlock();
    return wrong ? -1 : 0;
}

/* The last message, "" if there was none. */
API const char *emulator_error(void) {
    return driver.error ? driver.error : "";
}

/* Clears a fault, which is sticky as on hardware: a new machine with the same settings, modules and memory. */
API void emulator_reset(void) {
    driver_lock();
    if (driver.machine) start_machine();
    driver.queued = 0;
    free(driver.error);
    driver.error = NULL;
    driver_unlock();
}

__attribute__((destructor)) static void at_exit(void) {
    if (driver.machine) trace_end(driver.machine);
}

/* ---- initialisation, errors ---- */

API CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    ENTER;
    driver_open();
    if (!driver.machine) start_machine();
    driver.initialized = 1;
    LEAVE;
}

API CUresult cuDriverGetVersion(int *version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for this device"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX compilation failed"},
    {CUDA_ERROR_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
     "too many blocks in cooperative launch"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "the stream began no capture that it could end"},
    {CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
     "the graph update was not performed because it included changes which violated constraints"},
    {CUDA_ERROR_INVALID_CLUSTER_SIZE, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

API CUresult cuGetErrorName(CUresult error, const char **text) {
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return *text = errors[i].name, CUDA_SUCCESS;
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

/* The last message, if there is one: more than the real driver gives. */
API CUresult cuGetErrorString(CUresult error, const char **text) {
    static _Thread_local char message[4096];
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    if (error != CUDA_SUCCESS && driver.error && (!driver.error_of || driver.error_of == error)) {
        snprintf(message, sizeof message, "%s", driver.error);
        *text = message;
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return *text = errors[i].text, CUDA_SUCCESS;
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
