"""nvfp4.quantize_model and nvfp4.dequantize_model: models whose layers become NVFP4, or dense again."""
