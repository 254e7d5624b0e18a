"""Stand-ins for the libraries of peers, as modules that a worker finds on its path.

Each has the part of the library's interface that the benchmark uses, and the same made-up model: every token is the one
before it plus 1. What goes wrong is told to them by environment variables, since they live in another process.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

FAULT_VARIABLE = "FAKE_PEER_FAULT"
"""Faults with commas between them. `load`: raises when it is loaded; `die:N`: the process ends at the N-th prompt;
`hang`: never answers; `other`: its speculation writes other tokens; `short:N`: writes too few at the N-th prompt;
`repack`: dies of a bad instruction when weights may be repacked; `spin`: keeps a core busy while nobody asks."""

_MODEL = """
    import os, sys, threading, time

    FAULTS = os.environ.get("FAKE_PEER_FAULT", "").split(",")
    asked = 0

    def begin():
        global asked
        asked += 1
        print("chatter on standard output")
        if f"die:{asked}" in FAULTS:
            print("out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        if "hang" in FAULTS:
            time.sleep(60)

    def loaded():
        if "load" in FAULTS:
            raise RuntimeError("the file is\\n  of another kind")
        if "spin" in FAULTS:
            threading.Thread(target=spin, daemon=True).start()

    def spin():
        while True:
            pass

    def written(prompt, count, speculates):
        step = 2 if "other" in FAULTS and speculates else 1
        count -= f"short:{asked}" in FAULTS
        return [prompt[-1] + step * (number + 1) for number in range(count)]
"""

_LLAMA_CPP = """
    import os
    import signal
    from types import SimpleNamespace
    from fake_peer_model import FAULTS, begin, loaded, written

    llama_cpp = SimpleNamespace(llama_model_default_params=lambda: SimpleNamespace(use_extra_bufts=True))

    class Llama:
        def __init__(self, model_path, *, n_ctx, n_batch, n_ubatch, n_threads, n_threads_batch, draft_model, verbose):
            assert open(model_path, "rb").read(4) == b"GGUF"
            assert n_threads == n_threads_batch >= 1 and not verbose
            self.room, self.draft, self.is_reset = n_ctx, draft_model, False
            self.is_repacked = llama_cpp.llama_model_default_params().use_extra_bufts
            loaded()

        def reset(self):
            self.is_reset = True

        def generate(self, tokens, *, temp, repeat_penalty):
            assert (temp, repeat_penalty, self.is_reset) == (0.0, 1.0, True)
            self.is_reset = False
            if "repack" in FAULTS and self.is_repacked:
                os.kill(os.getpid(), signal.SIGILL)
            begin()
            yield from written(tokens, self.room - len(tokens), self.draft is not None)
"""

_LLAMA_SPECULATIVE = """
    class LlamaPromptLookupDecoding:
        def __init__(self, *, num_pred_tokens):
            self.num_pred_tokens = num_pred_tokens
"""

_OPENVINO = """
    from types import SimpleNamespace

    class Core:
        def get_property(self, device, name):
            assert device == "CPU"
            types = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "u8"}
            return SimpleNamespace(to_string=lambda: types[name]) if name in types else 32

    class Tensor:
        def __init__(self, array):
            assert array.dtype == "int64" and array.shape[0] == 1
            self.row = array[0].tolist()
"""

_OPENVINO_GENAI = """
    import os
    from fake_peer_model import begin, loaded, written

    class SchedulerConfig:
        enable_prefix_caching, max_num_batched_tokens = True, 256

    class StreamingStatus:
        RUNNING = "running"

    class StreamerBase:
        pass

    class GenerationConfig:
        def __init__(self, *, max_new_tokens, ignore_eos, do_sample, apply_chat_template, **speculation):
            assert ignore_eos and not do_sample and not apply_chat_template
            self.max_new_tokens, self.speculation = max_new_tokens, speculation

    def draft_model(folder, device, **properties):
        assert os.listdir(folder).count("openvino_model.xml") == 1
        return folder

    class LLMPipeline:
        def __init__(self, path, device, *, enable_save_ov_model=False, **options):
            assert device == "CPU" and open(path, "rb").read(4) == b"GGUF"
            if enable_save_ov_model:
                open(os.path.join(os.path.dirname(path), "openvino_model.xml"), "w").close()
                return
            assert not options["scheduler_config"].enable_prefix_caching
            assert options["INFERENCE_NUM_THREADS"] >= 1
            assert options["KV_CACHE_PRECISION"].to_string() == "u8"
            loaded()

        def generate(self, prompt, config, streamer):
            begin()
            tokens = written(prompt.row, config.max_new_tokens, bool(config.speculation))
            streamer.write(tokens[0])
            for start in range(1, len(tokens), 3):
                assert streamer.write(tokens[start : start + 3]) == StreamingStatus.RUNNING
            streamer.end()
"""

_MODULES = {
    "fake_peer_model.py": _MODEL,
    "llama_cpp/__init__.py": _LLAMA_CPP,
    "llama_cpp/llama_speculative.py": _LLAMA_SPECULATIVE,
    "openvino.py": _OPENVINO,
    "openvino_genai.py": _OPENVINO_GENAI,
}
_VERSIONS = {"llama_cpp_python": "9.1", "openvino_genai": "9.2"}


def install_fake_peers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, fault: str = "", missing: tuple[str, ...] = ()
) -> None:
    """Put the modules into `folder`, and that folder first on the path of processes started from now on.

    Args:
        fault: what goes wrong, with commas between several, see `FAULT_VARIABLE`.
        missing: packages whose import fails, as where they are not installed.
    """
    for name, source in _MODULES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    for name, version in _VERSIONS.items():
        metadata = folder / f"{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for package in missing:
        top = folder / f"{package}/__init__.py" if (folder / package).is_dir() else folder / f"{package}.py"
        top.write_text(f"raise ModuleNotFoundError(\"No module named '{package}'\", name='{package}')\n")
    earlier = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([earlier] if earlier else [])]))
    monkeypatch.setenv(FAULT_VARIABLE, fault)
