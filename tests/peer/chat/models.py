"""Folders with small models to talk with."""

from __future__ import annotations

import json
from pathlib import Path

from protocol.formats.model import ModelConfig
from tests.trainer.made_tokenizer import ENDS, TEXT_END, VOCAB, make_tokenizer
from tests.trainer.weights.models import QWEN2, in_blocks, random_parameters
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

CONTEXT = 128
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = ModelConfig.from_mapping(QWEN2 | {"tied": True, "vocab": VOCAB, "context": CONTEXT})


def make_model(folder: Path, template: str = CHATML, seed: int = 0) -> Path:
    """A tiny Qwen2 with its tokenizer and a chat template, as transformers saves them."""
    folder.mkdir()
    write_folder(folder, CONFIG, in_blocks(random_parameters(CONFIG, seed)), ExportFormat.FP32, context=CONTEXT, eos=None)
    make_tokenizer(folder / "tokenizer.json")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ENDS)}))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": TEXT_END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return folder
