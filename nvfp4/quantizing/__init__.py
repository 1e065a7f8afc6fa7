"""nvfp4.quantize_model and nvfp4.dequantize_model make the layers of a model NVFP4, or dense again."""
