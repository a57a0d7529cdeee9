# SPDX-License-Identifier: Apache-2.0
"""loaders.py LOADER FOLDER: loads a checkpoint with one of the loaders of expertfs-guide(7), whole, and prints as JSON its version,
the bytes of all tensors and their sum. Exit status 77: its package is missing."""
import glob
import importlib
import importlib.metadata
import json
import os
import sys
import tempfile

if __name__ == "__main__":
    NAME, FOLDER = sys.argv[1:]
    FILES = sorted(glob.glob(f"{FOLDER}/*.safetensors"))


def need(name):
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        print(missing)
        sys.exit(77)


def bytes_of(tensor):
    """A tensor of torch or mlx, or an array, as bytes of numpy."""
    numpy = need("numpy")
    if hasattr(tensor, "data_ptr"):
        tensor = tensor.detach().contiguous().view(need("torch").uint8).numpy()
    elif not isinstance(tensor, numpy.ndarray):
        tensor = numpy.asarray(tensor.view(need("mlx.core").uint8))
    return tensor.reshape(-1).view(numpy.uint8)


def of_transformers(**arguments):
    need("torch")
    model = need("transformers").AutoModelForCausalLM.from_pretrained(FOLDER, dtype="auto", **arguments)
    return model.state_dict().values()


def transformers_read():
    if need("transformers").__version__.startswith("4."):
        print("transformers 4 has no disable_mmap")
        sys.exit(77)
    return of_transformers(disable_mmap=True)


def accelerate():
    """Half of the checkpoint is written to a folder, and read from there."""
    need("accelerate")
    with tempfile.TemporaryDirectory() as folder:
        size = sum(map(os.path.getsize, FILES)) // 2
        need("transformers").AutoModelForCausalLM.from_pretrained(FOLDER, dtype="auto", device_map="auto", max_memory={"cpu": size},
                                                                  offload_folder=folder)
        return []


def of_safetensors(backend):
    module = need("safetensors.torch")  # numpy has no BF16
    for path in FILES:
        yield from module.load_file(path, backend=backend).values()


def fastsafetensors():
    module = need("fastsafetensors")
    with module.fastsafe_open(FILES, nogds=True, device="cpu") as opened:
        for key in opened.keys():
            yield opened.get_tensor(key).clone()


def runai():
    with need("runai_model_streamer").SafetensorsStreamer() as streamer:
        streamer.stream_files(FILES)
        for _, tensor in streamer.get_tensors():
            yield tensor.clone()


def mlx():
    need("mlx.core")
    model, _ = need("mlx_lm").load(FOLDER)
    return (value for _, value in need("mlx.utils").tree_flatten(model.parameters()))


LOADERS = {
    "transformers": ("transformers", of_transformers),
    "transformers, disable_mmap=True": ("transformers", transformers_read),
    "accelerate, offload": ("accelerate", accelerate),
    "safetensors, backend=\"mmap\"": ("safetensors", lambda: of_safetensors("mmap")),
    "safetensors, backend=\"pread\"": ("safetensors", lambda: of_safetensors("pread")),
    "fastsafetensors, nogds=True": ("fastsafetensors", fastsafetensors),
    "runai-model-streamer": ("runai-model-streamer", runai),
    "mlx-lm": ("mlx-lm", mlx),
}


def main():
    package, load = LOADERS[NAME]
    count = total = 0
    for tensor in load():
        found = bytes_of(tensor)
        count += found.nbytes
        total += int(found.sum(dtype="uint64"))
    print(json.dumps({"version": importlib.metadata.version(package), "bytes": count, "sum": total}))


if __name__ == "__main__":
    main()
