"""One framework at a limit of 8 GiB, for 200 steps, then beyond it: matrix_program.py CASE preload|attach|plain. What tests/gpu/matrix.sh runs on a card; `plain` is the same program
without a limit (PyTorch only): it fills 8 GiB by itself and ends after its steps.

Prints one JSON object: the card as CUDA, NVML and the framework see it; whether statistics work; the framework's own error; whether it goes on after it. Then that error is raised, so
that whoever watches has a failure to tell of. What NVML shows for this process is sampled by another (nvml_sampler.py)."""
import ctypes, faulthandler, json, os, sys, time

case, how = sys.argv[1], sys.argv[2]
LIMIT = 8 << 30
said = {"case": case, "how": how, "pid": os.getpid()}
if case == "expandable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
faulthandler.dump_traceback_later(float(os.environ.get("STUCK_AFTER", "100")), exit=False)  # where it is, if it does not end


def attach():
    if how == "attach":
        import memfit
        said["limit"] = str(memfit.limit("8GiB")).split("\n")[0]


def look():
    """The card by the driver's and NVML's own functions, as any program asks them."""
    cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
    device, total = ctypes.c_int(), ctypes.c_size_t()
    cuda.cuInit(0)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    handle, v1 = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    nvml.nvmlDeviceGetMemoryInfo(handle, v1)

    class V2(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint)] + [(n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")]
    v2 = V2()
    v2.version = ctypes.sizeof(V2) | 2 << 24
    nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(v2))
    said["seen"] = {"cuDeviceTotalMem": total.value, "nvml": v1[0], "nvml_v2": v2.total}


def steps(step, wait):
    step()
    wait()
    said["begin"] = time.time()
    for i in range(200):
        step()
        if i % 50 == 49:
            wait()
            print("%s %s: %d steps after %.2f s" % (case, how, i + 1, time.time() - said["begin"]), file=sys.stderr, flush=True)
    said["end"] = time.time()
    said["steps"] = 200


def finish(error, message):
    if how == "attach" and "STORY" in os.environ:
        from memfit import _program
        status, out, told = _program.run(["run", "--json", "--story", os.environ["MEMFIT_GOVERN_FACTS"]])
        open(os.environ["STORY"], "w").write(out or told)
    said["error"] = type(error).__name__
    said["message"] = message[:160]
    print(json.dumps(said), flush=True)
    raise error


def run_torch():
    import torch
    attach()
    look()
    said["seen"]["mem_get_info"] = torch.cuda.mem_get_info()[1]
    said["seen"]["properties"] = torch.cuda.get_device_properties(0).total_memory
    nn = torch.nn
    torch.backends.cudnn.benchmark = case == "benchmark"
    blocks = [nn.Sequential(nn.Conv2d(64 if i else 3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for i in range(6)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    used = torch.compile(model, mode="reduce-overhead") if case == "compile" else model
    optimizer = torch.optim.Adam(model.parameters(), capturable=case == "graphs")
    x, y = torch.randn(64, 3, 64, 64, device="cuda"), torch.randint(0, 10, (64,), device="cuda")

    def train():
        loss = nn.functional.cross_entropy(used(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def step():
        optimizer.zero_grad(set_to_none=True)
        return train()
    if case == "graphs":  # as PyTorch's notes on CUDA graphs have it: first some steps on a side stream
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            train()
        step = graph.replay
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    ballast = []
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    need = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() + (640 << 20)  # of a step, which takes it from what is left of the allocator's own, and from the card

    def room():  # of the card; without a limit as if there were one
        return torch.cuda.mem_get_info()[0] if how != "plain" else LIMIT - (660 << 20) - torch.cuda.memory_reserved()
    while room() + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > need:
        ballast.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    steps(step, torch.cuda.synchronize)
    stats = torch.cuda.memory_stats()
    said["statistics"] = stats["reserved_bytes.all.current"] > 0 and len(torch.cuda.memory_summary()) > 100 and len(torch.cuda.memory_snapshot()) > 0
    said["reserved"] = stats["reserved_bytes.all.current"]
    if how == "plain":
        print(json.dumps(said), flush=True)
        return
    error = None
    try:
        while True:
            ballast.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as e:
        error = e
    said["tensors_mib"] = len(ballast) * 64
    said["ooms"] = torch.cuda.memory_stats()["num_ooms"]
    time.sleep(0.3)
    ballast.clear()
    torch.cuda.empty_cache()
    step()
    torch.cuda.synchronize()
    said["goes_on"] = True
    finish(error, str(error))


def run_jax():
    import jax, jax.numpy as jnp
    attach()
    look()
    device = jax.devices()[0]
    said["pool"] = device.memory_stats()["bytes_limit"]
    key = jax.random.PRNGKey(0)
    sizes = [1024, 4096, 4096, 10]
    weights = [jax.random.normal(key, (a, b)) * 0.02 for a, b in zip(sizes, sizes[1:])]
    x, y = jax.random.normal(key, (4096, 1024)), jax.random.normal(key, (4096, 10))

    def loss(weights):
        h = x
        for w in weights[:-1]:
            h = jax.nn.relu(h @ w)
        return jnp.mean((h @ weights[-1] - y) ** 2)
    update = jax.jit(lambda weights: [w - 1e-3 * g for w, g in zip(weights, jax.grad(loss)(weights))])

    def step():
        nonlocal weights
        weights = update(weights)
    for _ in range(3):
        step()
    jax.block_until_ready(weights)
    ballast = []
    while device.memory_stats()["bytes_in_use"] < said["pool"] - (768 << 20):
        ballast.append(jnp.zeros((16 << 20,)).block_until_ready())
    steps(step, lambda: jax.block_until_ready(weights))
    said["statistics"] = device.memory_stats()["peak_bytes_in_use"] > 0
    begin, error = time.time(), None
    try:
        jnp.zeros((1 << 30,)).block_until_ready()  # 4 GiB in one: XLA waits 10 s for others to give back before it gives up
    except Exception as e:
        error = e
    said["seconds_to_error"] = time.time() - begin
    ballast.clear()
    step()
    jax.block_until_ready(weights)
    said["goes_on"] = True
    finish(error, str(error))


def run_cupy():
    import cupy
    attach()
    look()
    said["seen"]["memGetInfo"] = cupy.cuda.runtime.memGetInfo()[1]
    said["seen"]["properties"] = int(cupy.cuda.runtime.getDeviceProperties(0)["totalGlobalMem"])
    a = cupy.random.rand(2048, 2048, dtype=cupy.float32)

    def step():
        b = cupy.tanh(a @ a * 1e-3)
        return float((b - b.mean()).sum())
    step()
    ballast = []
    while cupy.cuda.runtime.memGetInfo()[0] > 384 << 20:
        ballast.append(cupy.empty(64 << 20, dtype=cupy.uint8))
    steps(step, cupy.cuda.runtime.deviceSynchronize)
    pool = cupy.get_default_memory_pool()
    said["statistics"] = pool.used_bytes() > 0 and pool.total_bytes() >= pool.used_bytes()
    error = None
    try:
        while True:
            ballast.append(cupy.empty(64 << 20, dtype=cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError as e:
        error = e
    said["tensors_mib"] = len(ballast) * 64
    time.sleep(0.3)
    ballast.clear()
    pool.free_all_blocks()
    step()
    said["goes_on"] = True
    finish(error, str(error))


{"jax": run_jax, "cupy": run_cupy}.get(case, run_torch)()
