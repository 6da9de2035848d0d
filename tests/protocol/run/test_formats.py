"""Sections that peers and trainers both read are defined once, and reach the trainer as the manifest has them."""

from __future__ import annotations

import pytest

from protocol.formats.model import ModelConfig
from protocol.formats.training import DataConfig
from protocol.run.manifest import RunManifest, demo_manifest
from protocol.run.sections import DataSection
from trainer.config import TrainingConfig


def test_a_change_is_checked_like_a_new_section() -> None:
    assert ModelConfig().changed(layers=7) == ModelConfig(layers=7)
    with pytest.raises(ValueError, match=r"^ModelConfig: heads \(4\) must be a multiple of kv_heads \(3\)"):
        ModelConfig().changed(kv_heads=3)


@pytest.mark.parametrize("documents", ["masked", "joined"])
def test_a_trainer_on_its_own_data_reads_documents_as_the_manifest_says(documents: str) -> None:
    data = DataSection.model_validate({"source": "local", "documents": documents})
    manifest: RunManifest = demo_manifest().manifest.model_copy(update={"data": data})
    read = TrainingConfig.from_sections(manifest.trainer_sections()).data
    assert {name: getattr(read, name) for name in DataConfig.model_fields} == {
        name: getattr(data, name) for name in DataConfig.model_fields
    }
