/* Driver API: streams and events. All streams share one queue in the order of the calls, so the work before an event
 * has always run before work queued after it. */
#define _GNU_SOURCE /* clock_gettime */
#include <stdlib.h>
#include <time.h>

#include "driver/driver.h"

enum { EVENT_DISABLE_TIMING = 2, CAPTURE_NONE = 0 };

/* ---- streams ---- */

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    NEED(stream && flags <= 1);
    *stream = calloc(1, sizeof **stream);
    if (!*stream) return CUDA_ERROR_OUT_OF_MEMORY;
    **stream = (struct stream){.flags = flags, .priority = priority};
    handle_add(HANDLE_STREAM, *stream);
    return CUDA_SUCCESS;
}
API CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}
API CUresult cuStreamDestroy_v2(CUstream stream) {
    NEED_HANDLE(HANDLE_STREAM, stream);
    ENTER;
    result = driver_flush();
    handle_remove(stream);
    free(stream);
    LEAVE;
}
API CUresult cuStreamSynchronize(CUstream stream) {
    NEED_STREAM(stream);
    ENTER;
    result = driver_flush();
    LEAVE;
}
API CUresult cuStreamQuery(CUstream stream) {
    return cuStreamSynchronize(stream);
}
API CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) {
    NEED_STREAM(stream);
    NEED(flags);
    *flags = (uintptr_t)stream > 2 ? stream->flags : 0;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetPriority(CUstream stream, int *priority) {
    NEED_STREAM(stream);
    NEED(priority);
    *priority = (uintptr_t)stream > 2 ? stream->priority : 0;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    NEED_STREAM(stream);
    NEED(context);
    *context = &driver.primary;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetDevice(CUstream stream, CUdevice *device) {
    NEED_STREAM(stream);
    NEED(device);
    *device = 0;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
    NEED_STREAM(stream);
    NEED(id);
    *id = (uintptr_t)stream;
    return CUDA_SUCCESS;
}
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    NEED_STREAM(stream);
    NEED_HANDLE(HANDLE_EVENT, event);
    return CUDA_SUCCESS;
}
API CUresult cuStreamSetAttribute(CUstream stream, int attribute, const void *value) {
    (void)attribute; /* access policies, priorities: none changes a result */
    NEED_STREAM(stream);
    NEED(value);
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetAttribute(CUstream stream, int attribute, void *value) {
    (void)attribute;
    NEED_STREAM(stream);
    NEED(value);
    memset(value, 0, 64);
    return CUDA_SUCCESS;
}
API CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
    NEED_STREAM(to);
    NEED_STREAM(from);
    return CUDA_SUCCESS;
}
API CUresult cuLaunchHostFunc(CUstream stream, void (*call)(void *), void *argument) {
    NEED(call);
    CUresult result = cuStreamSynchronize(stream);
    if (!result) call(argument);
    return result;
}
API CUresult cuStreamAddCallback(CUstream stream, void (*call)(CUstream, CUresult, void *), void *argument,
                                 unsigned flags) {
    NEED(call && !flags);
    NEED_STREAM(stream);
    call(stream, cuStreamSynchronize(stream), argument);
    return CUDA_SUCCESS;
}

/* ---- capture: there is none, and who asks is told so ---- */

API CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    NEED_STREAM(stream);
    NEED(status);
    *status = CAPTURE_NONE;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id) {
    if (id) *id = 0;
    return cuStreamIsCapturing(stream, status);
}
API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, void **graph,
                                       const void **dependencies, size_t *count) {
    if (graph) *graph = NULL;
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    return cuStreamGetCaptureInfo(stream, status, id);
}
API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id, void **graph,
                                       const void **dependencies, const void **edges, size_t *count) {
    if (edges) *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}
API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    (void)mode;
    NEED_STREAM(stream);
    return driver_rejectf(CUDA_ERROR_NOT_SUPPORTED, "cuStreamBeginCapture: there are no graphs here");
}

/* ---- events ---- */

API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    NEED(event && flags < 8);
    *event = calloc(1, sizeof **event);
    if (!*event) return CUDA_ERROR_OUT_OF_MEMORY;
    (*event)->flags = flags;
    handle_add(HANDLE_EVENT, *event);
    return CUDA_SUCCESS;
}
API CUresult cuEventDestroy_v2(CUevent event) {
    NEED_HANDLE(HANDLE_EVENT, event);
    handle_remove(event);
    free(event);
    return CUDA_SUCCESS;
}
/* Runs the queue first. Elapsed times are of this machine's clock, not of a GPU. */
API CUresult cuEventRecord(CUevent event, CUstream stream) {
    NEED_HANDLE(HANDLE_EVENT, event);
    NEED_STREAM(stream);
    ENTER;
    result = driver_flush();
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->nanoseconds = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    LEAVE;
}
API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    (void)flags;
    return cuEventRecord(event, stream);
}
API CUresult cuEventSynchronize(CUevent event) {
    NEED_HANDLE(HANDLE_EVENT, event);
    return cuStreamSynchronize(NULL);
}
API CUresult cuEventQuery(CUevent event) {
    return cuEventSynchronize(event);
}
API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    NEED(milliseconds);
    NEED_HANDLE(HANDLE_EVENT, start);
    NEED_HANDLE(HANDLE_EVENT, end);
    if (!start->nanoseconds || !end->nanoseconds || (start->flags | end->flags) & EVENT_DISABLE_TIMING)
        return driver_rejectf(
            CUDA_ERROR_INVALID_HANDLE,
            "cuEventElapsedTime: both events must have been recorded, and have been made with timing");
    *milliseconds = (float)((double)(int64_t)(end->nanoseconds - start->nanoseconds) * 1e-6);
    return CUDA_SUCCESS;
}
/* The name without a suffix is linked too: the first version differs from the second in nothing that is emulated. */
API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
