"""Writes GGUF files with the package gguf, from what print_gguf says."""

import gguf

TYPES = {"u8": gguf.GGUFValueType.UINT8, "i8": gguf.GGUFValueType.INT8, "u16": gguf.GGUFValueType.UINT16,
         "i16": gguf.GGUFValueType.INT16, "u32": gguf.GGUFValueType.UINT32, "i32": gguf.GGUFValueType.INT32,
         "f32": gguf.GGUFValueType.FLOAT32, "bool": gguf.GGUFValueType.BOOL, "string": gguf.GGUFValueType.STRING,
         "u64": gguf.GGUFValueType.UINT64, "i64": gguf.GGUFValueType.INT64, "f64": gguf.GGUFValueType.FLOAT64}


def finished(writer, path):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write(path, architecture, metadata, tensors=()):
    """A file with the keys, and with fp32 tensors, pairs of a name and an array."""
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, (kind, value) in metadata:
        if key == "general.architecture":
            continue
        if kind.endswith("[]"):
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=TYPES[kind[:-2]])
        else:
            writer.add_key_value(key, value, TYPES[kind])
    for name, array in tensors:
        writer.add_tensor(name, array)
    return finished(writer, path)


def with_tensors(path, source, tensors, keys=None):
    """A copy of a file that has these fp32 tensors, too: a dict of arrays. `keys`: functions that change values, None for a key that goes."""
    changes = keys or {}
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(str(path), reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kinds, change = field.types, changes.get(name, lambda value: value)
            if change is not None:
                writer.add_key_value(name, change(field.contents()), kinds[0], sub_type=kinds[1] if len(kinds) > 1 else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    return finished(writer, path)


def tensor_types(path):
    """The type of every tensor of a file."""
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
