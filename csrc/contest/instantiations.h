/* The instantiations in the competition's file: its products need none that loads by cp.async, so the file leaves their
 * producer out (changes.txt). */
#ifndef NVFP4_CONTEST_INSTANTIATIONS_H
#define NVFP4_CONTEST_INSTANTIATIONS_H

#define SM100_GEMM_CONFIGS SM100_GEMM_TMA

template <class C> struct cp_async_producer;

#endif
