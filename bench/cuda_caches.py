#!/usr/bin/env python3
"""What peers compiled, from one machine to the next: cuda_caches.py pack FOLDER BYTES [PEER...] | unpack FOLDER

bench_cuda.py gives every peer a folder of its own under the system's temporary folder (memfit-peers/NAME.SETTING) for what its compilers keep. `pack` writes one
PEER.txz each into FOLDER, peers in the order given, as long as they stay within BYTES in all; `unpack` puts them back. PyTorch keys what it keeps by its source, its versions and
the card's name, so another card of the kind finds it. A compiled graph carries its kernels; single kernels go along only for a peer that never got as far as a graph.
"""
import concurrent.futures
import io
import lzma
import pathlib
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(tempfile.gettempdir(), "memfit-peers")


def folder_of(peer):
    return ROOT / peer.replace(":", ".")


def wanted(folder):
    """JAX's programs; PyTorch's graphs with their kernels inside, or else the kernels alone."""
    graphs = any((folder / "inductor" / "fxgraph").rglob("*")) if (folder / "inductor" / "fxgraph").is_dir() else False
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if path.is_file() and not path.name.endswith(".lock") and "locks" not in inside and (inside[0] != "triton" or not graphs):
            yield path


def packed(folder):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for path in wanted(folder):
            tar.add(path, str(path.relative_to(ROOT)))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]
    return lzma.compress(raw.getvalue(), filters=filters), raw.tell()


def pack(out, room, peers):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    folders = [folder_of(p) for p in peers] or sorted(ROOT.iterdir())
    folders = [f for f in folders if f.is_dir()]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        for folder, (data, size) in zip(folders, pool.map(packed, folders)):
            taken = len(data) <= room
            print(f"{folder.name:32} {size >> 10:8,} KiB as {len(data) >> 10:6,} KiB{'' if taken else ': no room'}", flush=True)
            if taken:
                room -= len(data)
                (out / f"{folder.name}.txz").write_bytes(data)


def unpack(source):
    ROOT.mkdir(parents=True, exist_ok=True)

    def one(path):
        with tarfile.open(path, "r:xz") as tar:
            tar.extractall(ROOT, filter="data")
        return path.stem

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        print("caches put back:", *pool.map(one, sorted(pathlib.Path(source).glob("*.txz"))))


if __name__ == "__main__":
    if sys.argv[1] == "pack":
        pack(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    else:
        unpack(sys.argv[2])
