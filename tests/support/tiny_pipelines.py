"""Pipelines of diffusers with tiny random models, tokenizers and schedulers, made without a hub; and their models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = ["<pad>", "</s>", "<unk>", "a", "the", "red", "cat", "house", "on", "dog", "with", "<|im_start|>", "user"]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}

MODELS: dict[str, Callable[[], Any]] = {
    "flux": lambda: diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ),
    "flux2": lambda: diffusers.Flux2Transformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        timestep_guidance_channels=16,
        axes_dims_rope=[4, 4, 4, 4],
    ),
    "qwen": lambda: diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=3,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        axes_dims_rope=(8, 4, 4),
    ),
    "wan": lambda: diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=32,
        ffn_dim=64,
        num_layers=3,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    ),
    "ltx": lambda: diffusers.LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=4,
        attention_head_dim=16,
        cross_attention_dim=64,
        num_layers=2,
        caption_channels=32,
    ),
    "sd3": lambda: diffusers.SD3Transformer2DModel(
        sample_size=32,
        patch_size=1,
        in_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=64,
        pooled_projection_dim=64,
        out_channels=4,
    ),
    "unet": lambda: diffusers.UNet2DConditionModel(
        sample_size=32,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    ),
}


def tokenizer() -> Any:
    """Splits a text at spaces."""
    own = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    own.pre_tokenizer = Whitespace()
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 16}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=own, **names)


def flux() -> Any:
    clip = transformers.CLIPTextConfig(vocab_size=len(WORDS), max_position_embeddings=16, projection_dim=32, **SIZES)
    t5 = transformers.T5Config(vocab_size=len(WORDS), d_model=32, d_ff=64, d_kv=16, num_layers=2, num_heads=2)
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.1,
        scaling_factor=0.4,
    )
    return diffusers.FluxPipeline(
        diffusers.FlowMatchEulerDiscreteScheduler(),
        vae,
        transformers.CLIPTextModel(clip),
        tokenizer(),
        transformers.T5EncoderModel(t5),
        tokenizer(),
        MODELS["flux"](),
    )


def qwen() -> Any:
    config = transformers.Qwen2_5_VLConfig(
        text_config=SIZES
        | {
            "vocab_size": 64,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4},
        },
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 32,
            "window_size": 112,
            "fullatt_block_indexes": [0],
        },
    )
    vae = diffusers.AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    return diffusers.QwenImagePipeline(
        diffusers.FlowMatchEulerDiscreteScheduler(),
        vae,
        transformers.Qwen2_5_VLForConditionalGeneration(config),
        tokenizer(),
        MODELS["qwen"](),
    )


def wan() -> Any:
    umt5 = transformers.UMT5Config(vocab_size=len(WORDS), d_model=32, d_ff=64, d_kv=16, num_layers=2, num_heads=2)
    vae = diffusers.AutoencoderKLWan(base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1)
    return diffusers.WanPipeline(
        tokenizer(),
        transformers.UMT5EncoderModel(umt5),
        vae,
        diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        transformer=MODELS["wan"](),
    )


PIPELINES: dict[str, Callable[[], Any]] = {"flux": flux, "qwen": qwen, "wan": wan}
