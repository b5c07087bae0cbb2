"""The page on saved models: its code runs as printed."""

import os
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "saving.md"


@pytest.mark.filterwarnings("ignore::UserWarning")  # two epochs
def test_the_code_on_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), names)
    assert sorted(os.listdir(tmp_path)) == ["model", "own", "site", "site.onnx"]
    assert sorted(os.listdir(tmp_path / "site")) == ["model", "model.json", "model.md", "tensors.safetensors"]
