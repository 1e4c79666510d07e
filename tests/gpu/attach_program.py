"""memfit.limit in a running interpreter, on a card: attach_program.py torch|jax|cupy|late. PYTHONPATH and MEMFIT_PROGRAM name the package and the program."""
import sys
import memfit

what = sys.argv[1]
if what in ("torch", "late"):
    import torch
    if what == "late":
        torch.ones(3, device="cuda")
    print(memfit.limit("8GiB"))
    print(torch.cuda.mem_get_info())
    blocks = []
    try:
        while what == "torch":
            blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as e:
        print(len(blocks) * 64, "MiB, then:", str(e)[:120])
    del blocks
    torch.cuda.empty_cache()
if what in ("torch", "jax"):
    import jax
    if what == "jax":
        print(memfit.limit("8GiB"))
    print("JAX's pool:", jax.devices()[0].memory_stats()["bytes_limit"] / 2**30, "GiB")
if what == "cupy":
    import cupy
    print(memfit.limit("8GiB"))
    print(cupy.cuda.runtime.memGetInfo())
