"""Other runtimes that a benchmark measures beside this project's, each in a process of its own.

A file for each peer (`transformers_peer`, `llama_cpp_peer`, `openvino_peer`, and `own_runtime` for the memory that ours
takes alone), what they have in common (`peer`), the program of such a process (`worker`), the other end of its pipe
(`process`), and which systems there are (`plans`). What a worker imports before its peer brings no torch: that would be
counted as memory of a peer that does without.
"""

from __future__ import annotations

__all__: list[str] = []
