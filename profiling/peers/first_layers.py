"""The first layers of a GGUF model as a GGUF file: a draft for runtimes that take one only as a file.

Owns the cut. Knows nothing of who reads the file. Tensors keep their bytes; embedding, norm and head are the target's.
"""

from __future__ import annotations

import os
import re

_BLOCK = re.compile(r"blk\.(\d+)\.")


def write_first_layers(source: str | os.PathLike[str], draft: str | os.PathLike[str], *, num_layers: int) -> None:
    """Copy a GGUF file without the layers from number `num_layers` on.

    Raises:
        ValueError: if the file has no more layers than that.
    """
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    counter = f"{architecture}.block_count"
    num_there = int(reader.fields[counter].contents())
    if not 1 <= num_layers < num_there:
        raise ValueError(f"num_layers must be 1 to {num_there - 1}, the target's but one, got {num_layers}")
    writer = GGUFWriter(draft, architecture)
    for name, field in reader.fields.items():
        # The writer writes the header's own entries, and the architecture.
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        value = num_layers if name == counter else field.contents()
        writer.add_key_value(name, value, field.types[0], element)
    for tensor in reader.tensors:
        block = _BLOCK.match(tensor.name)
        if block is None or int(block[1]) < num_layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
