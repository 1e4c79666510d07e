"""The small network (Dense 10, Dense 2, 1000 samples of 10, Adam, mse, one epoch) in PyTorch or JAX, and its card: limits_program.py torch|jax s1|fill|fraction:X [GATE]. What tests/gpu/limits.sh runs.
fraction:X sets the framework's own limit; fill takes memory until it is refused. GATE: a file that must exist before the card is touched. Prints one JSON object."""
import ctypes, json, os, sys, time

framework, form = sys.argv[1], sys.argv[2]


def shown():
    """What NVML shows for this process."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")

    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]
    nvml.nvmlInit_v2()
    card, rows, count = ctypes.c_void_p(), (Process * 512)(), ctypes.c_uint(512)
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))
    nvml.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), rows)
    return sum(r.bytes for r in rows[:count.value] if r.pid == os.getpid())


def say(**facts):
    print(json.dumps(dict(framework=framework, form=form, nvml_mib=round(shown() / 2**20), **facts)), flush=True)


def torch_program():
    import torch
    wait()
    total = torch.cuda.get_device_properties(0).total_memory
    if form.startswith("fraction:"):
        torch.cuda.set_per_process_memory_fraction(eval(form[9:], {"total": total}))
    model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 2)).cuda()
    optimizer, x, y = torch.optim.Adam(model.parameters()), torch.randn(1000, 10, device="cuda"), torch.randn(1000, 2, device="cuda")
    for at in range(0, 1000, 32):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x[at:at + 32]), y[at:at + 32])
        loss.backward()
        optimizer.step()
    blocks, error = [], None
    block = max(32 << 20, total >> 8)
    try:
        while form != "s1":
            blocks.append(torch.empty(block, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as e:
        error = str(e)[:90]
    say(total_mib=total >> 20, loss=float(loss), got_mib=len(blocks) * block >> 20, error=error)


def jax_program():
    if form.startswith("fraction:"):
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(eval(form[9:], {"total": 150109880320}))
    import jax, jax.numpy as jnp
    wait()
    key = jax.random.PRNGKey(0)
    p = [jax.random.normal(key, (10, 10)), jnp.zeros(10), jax.random.normal(key, (10, 2)), jnp.zeros(2)]
    x, y = jax.random.normal(key, (1000, 10)), jax.random.normal(key, (1000, 2))

    def loss(p, x, y):
        return jnp.mean((jax.nn.relu(x @ p[0] + p[1]) @ p[2] + p[3] - y) ** 2)

    @jax.jit
    def update(p, m, v, n, x, y):
        value, g = jax.value_and_grad(loss)(p, x, y)
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g)]
        v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g)]
        p = [a - 1e-3 * (b / (1 - 0.9**n)) / (jnp.sqrt(c / (1 - 0.999**n)) + 1e-7) for a, b, c in zip(p, m, v)]
        return p, m, v, value
    m, v = [jnp.zeros_like(a) for a in p], [jnp.zeros_like(a) for a in p]
    for n, at in enumerate(range(0, 992, 32)):
        p, m, v, value = update(p, m, v, n + 1.0, x[at:at + 32], y[at:at + 32])
    say(loss=float(value), pool_mib=(jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0) >> 20)


def wait():
    print("imported", file=sys.stderr, flush=True)
    while len(sys.argv) > 3 and not os.path.exists(sys.argv[3]):
        time.sleep(0.02)


{"torch": torch_program, "jax": jax_program}[framework]()
