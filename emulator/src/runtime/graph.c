/* Runtime API: graphs, built node by node or by capturing a stream. A graph is the list of its nodes in the order in
 * which they were added. A node can depend on earlier nodes only (there is no cudaGraphAddDependencies), so this
 * order is a valid one to run them in. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cudart.h"

enum { UPDATE_TOPOLOGY_CHANGED = 2 };

typedef struct node {
    struct node *next;
    const struct node *original; /* of a copy: the node that the program knows */
    enum { NODE_KERNEL, NODE_COPY, NODE_FILL, NODE_CALL, NODE_EMPTY } kind;
    union {
        struct {
            CUfunction function;
            CUlaunchConfig config; /* its attributes: malloc'd */
            void *parameters;      /* malloc'd */
            size_t bytes;
        } kernel;
        struct {
            char *to;
            const char *from;
            size_t to_pitch, from_pitch, to_slice, from_slice, width, height, depth;
        } copy;
        struct {
            char *to;
            size_t pitch, width, height; /* width: elements */
            unsigned value, size;
        } fill;
        struct {
            void (*run)(void *);
            void *argument;
        } call;
    };
} node;

typedef struct graph {
    node *first, **end;
    size_t count;
} graph;

/* Streams that are capturing and the events that they have recorded. */
static struct membership {
    const void *who;
    graph *in;
    int origin; /* the stream that the capture began in */
} *members;
static size_t member_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static graph *graph_of(const void *who) {
    graph *found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < member_count; i++)
        if (members[i].who == who) found = members[i].in;
    pthread_mutex_unlock(&lock);
    return found;
}

static void join(const void *who, graph *g, int origin) {
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i < member_count && members[i].who != who) i++;
    if (i == member_count) {
        members = realloc(members, ++member_count * sizeof *members);
        if (!members) abort();
        members[i] = (struct membership){.who = who};
    }
    members[i].in = g;
    members[i].origin |= origin;
    pthread_mutex_unlock(&lock);
}

static int leave(const graph *g) {
    int from_origin = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < member_count;) {
        from_origin |= members[i].in == g && members[i].origin;
        if (members[i].in == g)
            members[i] = members[--member_count];
        else
            i++;
    }
    pthread_mutex_unlock(&lock);
    return from_origin;
}

/* ---- nodes ---- */

static graph *new_graph(void) {
    graph *g = calloc(1, sizeof *g);
    if (!g) abort();
    g->end = &g->first;
    return g;
}

static void *copy_of(const void *from, size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) abort();
    return bytes ? memcpy(p, from, bytes) : p;
}

static node *add(graph *g, const node *what) {
    node *n = copy_of(what, sizeof *what);
    n->next = NULL;
    *g->end = n;
    g->end = &n->next;
    g->count++;
    return n;
}

static void release(node *n) {
    if (n->kind != NODE_KERNEL) return;
    free(n->kernel.parameters);
    free(n->kernel.config.attrs);
}

static void own(node *n) {
    if (n->kind != NODE_KERNEL) return;
    n->kernel.parameters = copy_of(n->kernel.parameters, n->kernel.bytes);
    n->kernel.config.attrs =
        copy_of(n->kernel.config.attrs, n->kernel.config.numAttrs * sizeof *n->kernel.config.attrs);
}

static void free_graph(graph *g) {
    for (node *n = g->first, *next; n; n = next) {
        next = n->next;
        release(n);
        free(n);
    }
    free(g);
}

static graph *clone(const graph *from) {
    graph *g = new_graph();
    for (const node *n = from->first; n; n = n->next) {
        node *made = add(g, n);
        own(made);
        made->original = n;
    }
    return g;
}

/* The arguments, packed as the kernel takes them. */
static node kernel_node(CUfunction f, const CUlaunchConfig *config, void **arguments) {
    node n = {.kind = NODE_KERNEL, .kernel = {.function = f, .config = *config}};
    size_t offset, size;
    for (size_t i = 0; !cuda()->cuFuncGetParamInfo(f, i, &offset, &size); i++) n.kernel.bytes = offset + size;
    char *packed = calloc(1, n.kernel.bytes + 1);
    if (!packed) abort();
    for (size_t i = 0; !cuda()->cuFuncGetParamInfo(f, i, &offset, &size); i++)
        memcpy(packed + offset, arguments[i], size);
    n.kernel.parameters = packed;
    n.kernel.config.attrs = copy_of(config->attrs, config->numAttrs * sizeof *config->attrs);
    return n;
}

static cudaError_t run(const node *n) {
    cudaError_t error = CUDA_SUCCESS;
    switch (n->kind) {
    case NODE_KERNEL: {
        size_t bytes = n->kernel.bytes;
        void *extra[] = {(void *)1, n->kernel.parameters, (void *)2, &bytes, NULL};
        return cuda()->cuLaunchKernelEx(&n->kernel.config, n->kernel.function, NULL, extra);
    }
    case NODE_COPY:
        for (size_t z = 0; z < n->copy.depth && !error; z++)
            error =
                cudaMemcpy2D(n->copy.to + z * n->copy.to_slice, n->copy.to_pitch, n->copy.from + z * n->copy.from_slice,
                             n->copy.from_pitch, n->copy.width, n->copy.height, 0);
        return error;
    case NODE_FILL:
        for (size_t y = 0; y < n->fill.height && !error; y++) {
            CUdeviceptr row = (uintptr_t)(n->fill.to + y * n->fill.pitch);
            error = n->fill.size == 1   ? cuda()->cuMemsetD8_v2(row, (uint8_t)n->fill.value, n->fill.width)
                    : n->fill.size == 2 ? cuda()->cuMemsetD16_v2(row, (uint16_t)n->fill.value, n->fill.width)
                                        : cuda()->cuMemsetD32_v2(row, n->fill.value, n->fill.width);
        }
        return error;
    case NODE_CALL:
        return cuda()->cuLaunchHostFunc(NULL, n->call.run, n->call.argument);
    default:
        return CUDA_SUCCESS;
    }
}

/* ---- what a capturing stream is given (1: it was recorded) ---- */

static int record(CUstream stream, const node *n) {
    graph *g = graph_of(stream);
    if (g) add(g, n);
    return g != NULL;
}

int capture_launch(CUstream stream, CUfunction f, const CUlaunchConfig *config, void **arguments) {
    if (!graph_of(stream)) return 0;
    node n = kernel_node(f, config, arguments);
    return record(stream, &n);
}
int capture_copy(CUstream stream, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                 size_t height) {
    return record(stream, &(node){.kind = NODE_COPY, .copy = {to, from, to_pitch, from_pitch, 0, 0, width, height, 1}});
}
int capture_fill(CUstream stream, void *to, int value, size_t bytes) {
    return record(stream, &(node){.kind = NODE_FILL, .fill = {to, 0, bytes, 1, (uint8_t)value, 1}});
}
int capture_call(CUstream stream, void (*call)(void *), void *argument) {
    return record(stream, &(node){.kind = NODE_CALL, .call = {call, argument}});
}
int capture_event(CUstream stream, CUevent event) {
    graph *g = graph_of(stream);
    if (g) join(event, g, 0);
    return g != NULL;
}
/* A stream that waits for a captured event takes part in the capture. */
void capture_wait(CUstream stream, CUevent event) {
    graph *g = graph_of(event);
    if (g) join(stream, g, 0);
}

API cudaError_t cudaStreamBeginCapture(CUstream stream, int mode) {
    (void)mode;
    if (!stream || graph_of(stream)) return keep(CUDA_ERROR_INVALID_VALUE);
    join(stream, new_graph(), 1);
    return CUDA_SUCCESS;
}
API cudaError_t cudaStreamEndCapture(CUstream stream, graph **out) {
    *out = graph_of(stream);
    return keep(*out && leave(*out) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
}
API cudaError_t cudaStreamIsCapturing(CUstream stream, int *status) {
    *status = graph_of(stream) != NULL;
    return CUDA_SUCCESS;
}

/* ---- graphs made by hand: parameters as driver_types.h has them ---- */

struct kernel_parameters {
    const void *host;
    dim3 grid, block;
    unsigned shared;
    void **arguments, **extra;
};
struct pitched {
    char *p;
    size_t pitch, width, height;
};
struct position {
    size_t x, y, z;
};
struct copy_parameters {
    void *from_array;
    struct position from_position;
    struct pitched from;
    void *to_array;
    struct position to_position;
    struct pitched to;
    struct position extent;
    int kind;
};
struct fill_parameters {
    char *to;
    size_t pitch;
    unsigned value, size;
    size_t width, height;
};
struct call_parameters {
    void (*run)(void *);
    void *argument;
};

API cudaError_t cudaGraphCreate(graph **out, unsigned flags) {
    (void)flags;
    *out = new_graph();
    return CUDA_SUCCESS;
}
API cudaError_t cudaGraphDestroy(graph *g) {
    free_graph(g);
    return CUDA_SUCCESS;
}
API cudaError_t cudaGraphClone(graph **out, const graph *from) {
    *out = clone(from);
    return CUDA_SUCCESS;
}

static cudaError_t make_kernel(node *out, const struct kernel_parameters *p) {
    CUfunction f = kernel_of(p->host);
    if (!f || !p->arguments) return keep(CUDA_ERROR_INVALID_VALUE);
    CUlaunchConfig config = {.gridDimX = p->grid.x,
                             .gridDimY = p->grid.y,
                             .gridDimZ = p->grid.z,
                             .blockDimX = p->block.x,
                             .blockDimY = p->block.y,
                             .blockDimZ = p->block.z,
                             .sharedMemBytes = p->shared};
    *out = kernel_node(f, &config, p->arguments);
    return CUDA_SUCCESS;
}

API cudaError_t cudaGraphAddKernelNode(node **out, graph *g, node *const *before, size_t count,
                                       const struct kernel_parameters *p) {
    (void)before, (void)count;
    node made;
    cudaError_t error = make_kernel(&made, p);
    if (!error) *out = add(g, &made);
    return error;
}
API cudaError_t cudaGraphAddMemcpyNode(node **out, graph *g, node *const *before, size_t count,
                                       const struct copy_parameters *p) {
    (void)before, (void)count;
    if (p->from_array || p->to_array) return keep(CUDA_ERROR_NOT_SUPPORTED);
    const struct pitched *to = &p->to, *from = &p->from;
    const struct position *at = &p->to_position, *out_of = &p->from_position;
    node made = {.kind = NODE_COPY,
                 .copy = {.to = to->p + (at->z * to->height + at->y) * to->pitch + at->x,
                          .from = from->p + (out_of->z * from->height + out_of->y) * from->pitch + out_of->x,
                          .to_pitch = to->pitch,
                          .from_pitch = from->pitch,
                          .to_slice = to->pitch * to->height,
                          .from_slice = from->pitch * from->height,
                          .width = p->extent.x,
                          .height = p->extent.y,
                          .depth = p->extent.z}};
    *out = add(g, &made);
    return CUDA_SUCCESS;
}
API cudaError_t cudaGraphAddMemcpyNode1D(node **out, graph *g, node *const *before, size_t count, void *to,
                                         const void *from, size_t bytes, int kind) {
    (void)before, (void)count, (void)kind;
    *out = add(g, &(node){.kind = NODE_COPY, .copy = {to, from, 0, 0, 0, 0, bytes, 1, 1}});
    return CUDA_SUCCESS;
}
API cudaError_t cudaGraphAddMemsetNode(node **out, graph *g, node *const *before, size_t count,
                                       const struct fill_parameters *p) {
    (void)before, (void)count;
    node made = {.kind = NODE_FILL, .fill = {p->to, p->pitch, p->width, p->height, p->value, p->size}};
    *out = add(g, &made);
    return CUDA_SUCCESS;
}
API cudaError_t cudaGraphAddHostNode(node **out, graph *g, node *const *before, size_t count,
                                     const struct call_parameters *p) {
    (void)before, (void)count;
    *out = add(g, &(node){.kind = NODE_CALL, .call = {p->run, p->argument}});
    return CUDA_SUCCESS;
}
API cudaError_t cudaGraphAddEmptyNode(node **out, graph *g, node *const *before, size_t count) {
    (void)before, (void)count;
    *out = add(g, &(node){.kind = NODE_EMPTY});
    return CUDA_SUCCESS;
}
API cudaError_t cudaGraphGetNodes(const graph *g, node **nodes, size_t *count) {
    size_t i = 0;
    for (node *n = g->first; n && nodes && i < *count; n = n->next) nodes[i++] = n;
    *count = nodes ? i : g->count;
    return CUDA_SUCCESS;
}

/* ---- launches: an executable graph is a copy ---- */

API cudaError_t cudaGraphInstantiate(graph **out, const graph *from, unsigned long long flags) {
    (void)flags;
    *out = clone(from);
    return CUDA_SUCCESS;
}
API cudaError_t cudaGraphInstantiateWithFlags(graph **out, const graph *from, unsigned long long flags) {
    return cudaGraphInstantiate(out, from, flags);
}
API cudaError_t cudaGraphUpload(graph *g, CUstream stream) {
    (void)g, (void)stream;
    return CUDA_SUCCESS;
}
API cudaError_t cudaGraphExecDestroy(graph *g) {
    return cudaGraphDestroy(g);
}
API cudaError_t cudaGraphLaunch(const graph *g, CUstream stream) {
    (void)stream;
    cudaError_t error = CUDA_SUCCESS;
    for (const node *n = g->first; n && !error; n = n->next) error = run(n);
    return keep(error);
}
API cudaError_t cudaGraphExecKernelNodeSetParams(graph *g, const node *which, const struct kernel_parameters *p) {
    node *n = g->first, made;
    while (n && n->original != which) n = n->next;
    if (!n || n->kind != NODE_KERNEL) return keep(CUDA_ERROR_INVALID_VALUE);
    cudaError_t error = make_kernel(&made, p);
    if (error) return error;
    release(n);
    n->kernel = made.kernel;
    return CUDA_SUCCESS;
}
struct update_result {
    int result;
    node *at, *from;
};

API cudaError_t cudaGraphExecUpdate(graph *g, const graph *from, struct update_result *result) {
    const node *n = from->first;
    int changed = g->count != from->count;
    for (const node *m = g->first; m && !changed; m = m->next, n = n->next) changed = m->kind != n->kind;
    if (result) *result = (struct update_result){.result = changed ? UPDATE_TOPOLOGY_CHANGED : 0};
    if (changed) return keep(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    n = from->first;
    for (node *m = g->first; m; m = m->next, n = n->next) { /* the handles that name its nodes stay */
        node updated = *n;
        release(m);
        updated.next = m->next;
        updated.original = m->original;
        *m = updated;
        own(m);
    }
    return CUDA_SUCCESS;
}
