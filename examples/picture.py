"""Makes a picture with NVFP4 weights: python examples/picture.py picture.png

The pipeline is FLUX's with small random models, so the picture is no more than coloured noise. With a real one, replace
`random_pipeline` by its folder: the lines that quantize stay the same.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import diffusers
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import nvfp4.diffusers
import nvfp4.transformers

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "cat", "on", "the", "house"]


def random_pipeline(folder: str) -> None:
    """Writes FLUX's pipeline with random models of 9 million parameters."""
    torch.manual_seed(0)
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=16
    )
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    clip = transformers.CLIPTextConfig(vocab_size=len(WORDS), max_position_embeddings=16, projection_dim=64, **sizes)
    t5 = transformers.T5Config(vocab_size=len(WORDS), d_model=64, d_ff=128, d_kv=16, num_layers=2, num_heads=4)
    diffusers.FluxPipeline(
        diffusers.FlowMatchEulerDiscreteScheduler(),
        diffusers.AutoencoderKL(
            block_out_channels=(16, 32, 32),
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=4,
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
            use_quant_conv=False,
            use_post_quant_conv=False,
            shift_factor=0.0,
        ),
        transformers.CLIPTextModel(clip),
        tokenizer,
        transformers.T5EncoderModel(t5),
        tokenizer,
        diffusers.FluxTransformer2DModel(
            in_channels=16,
            num_layers=2,
            num_single_layers=3,
            attention_head_dim=64,
            num_attention_heads=4,
            joint_attention_dim=64,
            pooled_projection_dim=64,
            axes_dims_rope=(16, 24, 24),
        ),
    ).save_pretrained(folder)


def main(file: Path) -> None:
    configs = {
        "transformer": nvfp4.diffusers.NVFP4Config(),
        "text_encoder_2": nvfp4.transformers.NVFP4Config(activations=None),
    }
    with tempfile.TemporaryDirectory() as folder:
        random_pipeline(folder)
        pipe = diffusers.FluxPipeline.from_pretrained(
            folder,
            quantization_config=diffusers.PipelineQuantizationConfig(quant_mapping=configs),
            torch_dtype=torch.bfloat16,
        )
        report = pipe.transformer.hf_quantizer.report
        before, after = (sum(getattr(row, name) for row in report.layers) for name in ("bytes_before", "bytes_after"))
        print(f"{len(report.layers)} layers of the transformer are NVFP4: {before:,} bytes became {after:,}")
        generator = torch.Generator().manual_seed(1)
        pictures = pipe("a red cat on the house", height=128, width=128, num_inference_steps=4, generator=generator)
        pictures.images[0].save(file)
        print(f"{file}: {pictures.images[0].size[0]} x {pictures.images[0].size[1]} pixels")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "picture.png"))
