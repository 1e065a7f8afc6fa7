/* Each kind of wait that has a hook of the watchdog (test_watchdog.py). */
#include "kernels/common/cluster.cuh"
#include "kernels/common/flags.cuh"
#include "kernels/common/mbarrier.cuh"

extern "C" __global__ void waits(uint32_t barrier, uint32_t *flag) {
    griddepcontrol_wait();
    mbarrier_wait(barrier, 0);
    mbarrier_wait_cluster(barrier, 1);
    flag_wait(flag, 5);
    barrier_cluster_arrive();
    barrier_cluster_wait();
}
