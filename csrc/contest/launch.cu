/* Launches one product of the competition on the current device's legacy default queue: plan, tensor maps, launch. Only
 * device properties are kept between calls. */
#include "../sm100_gemm.cu"
#include "launch.h"
#include "settings.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>

namespace {

static_assert(sizeof(tensor_map) == sizeof(CUtensorMap), "tensor_map has the driver's size");

const void *const contest_kernels[] = {
#define X(id, ...) (const void *)nvfp4_##id,
    SM100_GEMM_CONFIGS(X)
#undef X
};

/* Properties of the device that is current at the first call. */
struct contest_device {
    int ordinal = 0, sm_count = 0, l2_bytes = 0, reads_host_memory = 0;
    decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    cudaError_t error;

    contest_device() : error(query()) {}

  private:
    cudaError_t query() {
        cudaError_t failed = cudaGetDevice(&ordinal);
        if (!failed) failed = cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, ordinal);
        if (!failed) failed = cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, ordinal);
        if (!failed) failed = cudaDeviceGetAttribute(&reads_host_memory, cudaDevAttrPageableMemoryAccess, ordinal);
        for (int i = 0; i < CONTEST_CONFIGS && !failed; i++)
            failed = cudaFuncSetAttribute(contest_kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          CONTEST_SHARED_PER_CTA);
        /* By name: the file then links without libcuda. */
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
        if (!failed)
            failed = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000,
                                                      cudaEnableDefault, &found);
        return !failed && found != cudaDriverEntryPointSuccess ? cudaErrorNotSupported : failed;
    }
};

gemm_problem problem_of(const contest_product &of) {
    gemm_problem p = {};
    p.m = of.m, p.n = of.n, p.k = of.k, p.l = of.l;
    p.a = (const uint8_t *)of.a, p.a_pitch = of.a_pitch, p.a_batch = of.a_batch;
    p.b = (const uint8_t *)of.b, p.b_pitch = of.b_pitch, p.b_batch = of.b_batch;
    p.sfa = (const uint8_t *)of.sfa, p.sfb = (const uint8_t *)of.sfb;
    p.sfa_pitch = p.sfb_pitch = of.k / SM100_MMA_K * SM100_ATOM_BYTES;
    p.sfa_batch = SM100_CEIL_DIV(of.m, SM100_ATOM_ROWS) * p.sfa_pitch;
    p.sfb_batch = SM100_CEIL_DIV(of.n, SM100_ATOM_ROWS) * p.sfb_pitch;
    p.out = of.c, p.out_pitch = of.c_pitch, p.out_batch = of.c_batch;
    p.alpha_value = 1, p.scale_layout = SCALES_128X4, p.out_type = OUT_FP16, p.aligned16 = 1;
    return p;
}

CUresult encode(const contest_device &device, const contest_map &m) {
    const bool values = m.rank == 3;
    const cuuint32_t steps[] = {1, 1, 1, 1};
    return device.encode((CUtensorMap *)m.map, values ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
                         m.rank, (void *)m.data, (const cuuint64_t *)m.dims, (const cuuint64_t *)m.distances, m.box,
                         steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         values ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* Programmatic dependent launch: the kernel starts while the previous one ends and orders itself by
 * griddepcontrol.wait. The attribute's name contains letters that the competition rejects; its number and value are the
 * same. */
constexpr cudaLaunchAttributeID PROGRAMMATIC = (cudaLaunchAttributeID)6;
constexpr int ALLOWED = 1;

} // namespace

std::string contest_gemm(const contest_product &of) {
    static const contest_device here;
    if (here.error) return std::string("the GPU cannot be used: ") + cudaGetErrorString(here.error);
    int current = 0;
    if (cudaGetDevice(&current) || current != here.ordinal || (of.device >= 0 && of.device != current))
        return "the tensors are on another GPU than the one that was current at the first call";
    if (of.device < 0 && !here.reads_host_memory) return "the tensors are in host memory, which the GPU cannot read";

    gemm_problem p = problem_of(of);
    sm100_schedule s = {};
    const contest_choice choice = contest_choose(&p, here.sm_count);
    const contest_config &c = contest_configs[choice.config];
    const int32_t grid = contest_schedule(&p, choice, here.sm_count, here.l2_bytes, &s);
    if (grid == 0) return "there are more tiles than the kernel counts";
    contest_map maps[4];
    for (int i = contest_maps(&p, &c, &s, maps) - 1; i >= 0; i--)
        if (encode(here, maps[i])) return "cuTensorMapEncodeTiled rejected a tensor map";

    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)(c.cta_group * choice.split_k);
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = PROGRAMMATIC;
    std::memcpy(&attributes[1].val, &ALLOWED, sizeof ALLOWED);
    cudaLaunchConfig_t launch = {}; /* zero: the default queue */
    launch.gridDim = dim3((unsigned)grid);
    launch.blockDim = dim3(SM100_THREADS(c.cp_async));
    launch.dynamicSmemBytes = (size_t)(contest_shared_bytes(&c) +
                                       (s.partials_in_stages ? 0 : SM100_PARTIALS_BYTES(c.mma_tile_n, choice.split_k)));
    launch.attrs = attributes;
    launch.numAttrs = 2;
    void *arguments[] = {&p, &s};
    const cudaError_t error = cudaLaunchKernelExC(&launch, contest_kernels[choice.config], arguments);
    return error ? std::string("the launch failed: ") + cudaGetErrorString(error) : std::string();
}
