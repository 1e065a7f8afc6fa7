"""The command of docs/accuracy.md that measures perplexity: lm-evaluation-harness runs nvfp4.Linear."""

from __future__ import annotations

import ast
import json
import math
import shlex
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from paths import ROOT

pytest.importorskip("lm_eval")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers", reason="comes with transformers")

import nvfp4.transformers  # noqa: E402

TEXT = topics["compound"][:200]
TASK = """
task: manual
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{page}}}}"
metric_list:
  - metric: bits_per_byte
"""


@pytest.mark.parametrize("activations", ["nvfp4", None])
def test_the_command_of_the_page(
    activations: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another task, as WikiText-2 is on the Hub. Its vocabulary is single characters."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        **sizes, vocab_size=128, max_position_embeddings=256, bos_token_id=1, eos_token_id=2
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4 if parameter.ndim > 1 else 1  # so that the modes differ by more than the last digit
    nvfp4.quantize_model(model, activations=activations)
    model.save_pretrained(tmp_path / "model")
    characters = {chr(i) if 32 <= i < 127 else f"<{i}>": i for i in range(128)}
    letters = tokenizers.Tokenizer(tokenizers.models.WordLevel(characters, unk_token="<0>"))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters, bos_token="<1>", eos_token="<2>")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "data.json").write_text(json.dumps([{"page": TEXT}]))
    (tmp_path / "manual.yaml").write_text(TASK.format(data=tmp_path / "data.json"))

    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    (command,) = (line for line in page.replace("\\\n", "").splitlines() if "lm_eval.__main__" in line)
    python, c, program, *arguments = shlex.split(command)
    assert (python, c) == ("python", "-c") and arguments[-2:] == ["--tasks", "wikitext"]
    arguments = [argument.replace("Llama-NVFP4", str(tmp_path / "model")) for argument in arguments[:-1]]
    arguments += ["manual", "--include_path", str(tmp_path), "--device", "cpu", "--output_path", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["-c", *arguments])
    exec(compile(ast.parse(program), "page", "exec"), {})
    (file,) = (tmp_path / "out").rglob("results*.json")
    found = json.loads(file.read_text())["results"]["manual"]["bits_per_byte,none"]

    ids = torch.tensor([[1, *tokenizer(TEXT, add_special_tokens=False).input_ids]])
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits.float()  # the call that lm_eval makes: dynamic scales depend on all rows
    loss = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum")
    assert found == pytest.approx(float(loss) / len(TEXT.encode()) / math.log(2), rel=1e-5)
