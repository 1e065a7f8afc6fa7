/* The current device of the competition's files, and launches on it, through the CUDA runtime. */
#ifndef NVFP4_CONTEST_DEVICE_H
#define NVFP4_CONTEST_DEVICE_H

#include "common/device_props.h"
#include "plan/launch_plan.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <string>

static_assert(sizeof(tensor_map) == sizeof(CUtensorMap), "the driver writes what the kernel reads");

struct contest_kernel {
    const void *function;
    int threads, largest_cluster;
};

/* The device that was current at the first call, asked once. */
struct contest_device {
    const contest_kernel *kernels;
    int count, ordinal = 0, reads_host_memory = 0;
    device_props props = {};
    decltype(&cuTensorMapEncodeTiled) encode_tiled = nullptr;
    cudaError_t error;

    contest_device(const contest_kernel *kernels, int count) : kernels(kernels), count(count), error(ask()) {}

    /* Why it cannot take tensors of this CUDA device (-1: in host memory), or "". */
    std::string why_not(int device) const {
        int current = 0;
        if (error) return std::string("the GPU cannot be used: ") + cudaGetErrorString(error);
        if (cudaGetDevice(&current) || current != ordinal || (device >= 0 && device != current))
            return "the tensors are on another GPU than the one that was current at the first call";
        if (device < 0 && !reads_host_memory) return "the tensors are in host memory, which the GPU cannot read";
        return "";
    }

    /* Launches a plan of one step. Returns "" or an error message. */
    std::string launch(launch_plan &plan) const {
        const launch_step &step = plan.step[0];
        for (int i = 0; i < plan.tensor_maps; i++)
            if (encode(plan, plan.tensor_map[i])) return "cuTensorMapEncodeTiled rejected a tensor map";
        cudaLaunchAttribute cluster;
        const int size = step.cluster > 1 ? step.cluster : 1;
        const cudaLaunchConfig_t config = config_of(step.kernel, step.grid_x, size, step.shared_bytes, cluster);
        void *params[] = {plan.params + step.param_offset[0], plan.params + step.param_offset[1]};
        const cudaError_t failed = cudaLaunchKernelExC(&config, kernels[step.kernel].function, params);
        return failed ? std::string("the launch failed: ") + cudaGetErrorString(failed) : std::string();
    }

  private:
    /* `cluster` is part of it. */
    cudaLaunchConfig_t config_of(int kernel, int64_t ctas, int size, int shared_bytes,
                                 cudaLaunchAttribute &cluster) const {
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {(unsigned)size, 1, 1};
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3((unsigned)ctas);
        config.blockDim = dim3((unsigned)kernels[kernel].threads);
        config.dynamicSmemBytes = (size_t)shared_bytes;
        config.attrs = &cluster;
        config.numAttrs = 1;
        return config;
    }

    CUresult encode(launch_plan &plan, const tensor_map_request &request) const {
        const tensor_layout &t = request.layout;
        const cuuint32_t steps[] = {1, 1, 1, 1, 1};
        return encode_tiled((CUtensorMap *)(plan.params + request.offset),
                            t.element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
                            (cuuint32_t)t.rank, (void *)t.data, (const cuuint64_t *)t.dims,
                            (const cuuint64_t *)t.strides, t.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            t.swizzle == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }

    cudaError_t attribute(cudaDeviceAttr which, int *value) { return cudaDeviceGetAttribute(value, which, ordinal); }

    /* The fewest that any kernel has room for. Without an answer the plan has its own numbers. */
    void ask_for_clusters(int kernel, int log_size) {
        const int size = 2 << log_size;
        int fit = 0, &least = props.clusters[0][log_size];
        cudaLaunchAttribute cluster;
        const cudaLaunchConfig_t config = config_of(kernel, size, size, props.shared_per_block, cluster);
        if (cudaOccupancyMaxActiveClusters(&fit, kernels[kernel].function, &config))
            (void)cudaGetLastError();
        else if (least == 0 || fit < least)
            least = fit > 0 ? fit : -1;
    }

    cudaError_t ask() {
        int major = 0, minor = 0, l2_bytes = 0;
        cudaError_t failed = cudaGetDevice(&ordinal);
        if (!failed) failed = attribute(cudaDevAttrComputeCapabilityMajor, &major);
        if (!failed) failed = attribute(cudaDevAttrComputeCapabilityMinor, &minor);
        if (!failed) failed = attribute(cudaDevAttrMultiProcessorCount, &props.sm_count);
        if (!failed) failed = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &props.shared_per_block);
        if (!failed) failed = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &props.shared_per_sm);
        if (!failed) failed = attribute(cudaDevAttrL2CacheSize, &l2_bytes);
        if (!failed) failed = attribute(cudaDevAttrPageableMemoryAccess, &reads_host_memory);
        props.compute_capability = 10 * major + minor;
        props.l2_bytes = l2_bytes;
        for (int i = 0; i < count && !failed; i++)
            failed = cudaFuncSetAttribute(kernels[i].function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          props.shared_per_block);
        for (int i = 0; i < count && !failed; i++)
            for (int log_size = 0; 2 << log_size <= kernels[i].largest_cluster; log_size++)
                ask_for_clusters(i, log_size);
        /* By name, so that nothing has to be linked with the driver. */
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
        if (!failed)
            failed = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode_tiled, 12000,
                                                      cudaEnableDefault, &found);
        return !failed && found != cudaDriverEntryPointSuccess ? cudaErrorNotSupported : failed;
    }
};

#endif
