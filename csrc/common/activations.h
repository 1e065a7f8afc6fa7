/* The numbers of gated activations: public in nvfp4.h, and the same in kernels. C, C++ and device code. */
#ifndef NVFP4_COMMON_ACTIVATIONS_H
#define NVFP4_COMMON_ACTIVATIONS_H

typedef enum nvfp4_activation {
    NVFP4_SILU = 0,      /* silu(gate) * up */
    NVFP4_GELU_TANH = 1, /* gelu_tanh(gate) * up */
    NVFP4_RELU2 = 2,     /* relu(gate)^2 */
    NVFP4_SWIGLU = 3,    /* gate * sigmoid(alpha * gate) * (up + 1) */
} nvfp4_activation;

#endif
