"""What tests/gpu/govern.sh runs on a card: PyTorch, JAX and CuPy in several ways. Prints one JSON object: what the framework sees, what it got,
and the largest figure NVML showed for this process in samples of 10 ms (nvml_peak)."""
import os, sys, time, threading, ctypes, json
what = sys.argv[1]
peak = [0]
stop = False
def sampler():
    # The list of processes is NVML's own: it is never changed by a limit.
    n = ctypes.CDLL('libnvidia-ml.so.1'); n.nvmlInit_v2()
    class P(ctypes.Structure): _fields_ = [('pid', ctypes.c_uint), ('bytes', ctypes.c_ulonglong), ('gi', ctypes.c_uint), ('ci', ctypes.c_uint)]
    h = ctypes.c_void_p(); n.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h))
    buf = (P * 128)()
    me = os.getpid()
    while not stop:
        c = ctypes.c_uint(128)
        if n.nvmlDeviceGetComputeRunningProcesses_v3(h, ctypes.byref(c), buf) == 0:
            for i in range(c.value):
                if buf[i].pid == me: peak[0] = max(peak[0], buf[i].bytes)
        time.sleep(0.01)
if os.environ.get('SAMPLE', '1') == '1': threading.Thread(target=sampler, daemon=True).start()
def done(**k):
    k['nvml_peak'] = peak[0]; k['nvml_peak_mib'] = peak[0] >> 20
    print(json.dumps(k), flush=True); os._exit(0)
if what.startswith('torch'):
    import torch
    free, total = torch.cuda.mem_get_info(); props = torch.cuda.get_device_properties(0).total_memory
    if what == 'torch-compile':
        f = torch.compile(lambda a: (a @ a).relu().sum(), mode='reduce-overhead'); a = torch.randn(512, 512, device='cuda')
        for _ in range(4): r = f(a)
        torch.cuda.synchronize(); done(total=total, value=float(r))
    if what == 'torch-fill':
        xs = []; err = ''
        try:
            while True: xs.append(torch.empty(64 << 20, dtype=torch.uint8, device='cuda'))
        except torch.OutOfMemoryError as e: err = str(e)[:300]
        time.sleep(0.3)
        done(total=total, free=free, props=props, allocated=len(xs) * 64, reserved=torch.cuda.memory_reserved(), err=err)
    torch.backends.cudnn.benchmark = True
    import torch.nn as nn
    m = nn.Sequential(*[nn.Sequential(nn.Conv2d(64 if i else 3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for i in range(8)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    o = torch.optim.Adam(m.parameters()); x = torch.randn(64, 3, 96, 96, device='cuda'); y = torch.randint(0, 10, (64,), device='cuda')
    def step():
        o.zero_grad(); l = nn.functional.cross_entropy(m(x), y); l.backward(); o.step(); return l
    for _ in range(10): step()
    torch.cuda.synchronize(); ts = []
    for _ in range(5):
        a = time.perf_counter()
        for _ in range(40): l = step()
        torch.cuda.synchronize(); ts.append((time.perf_counter() - a) / 40 * 1e3)
    if what == 'torch-graph':
        g = torch.cuda.CUDAGraph(); s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            with torch.no_grad():
                for _ in range(3): m(x)
        torch.cuda.synchronize()
        with torch.no_grad(), torch.cuda.graph(g): z = m(x)
        for _ in range(20): g.replay()
        torch.cuda.synchronize()
    done(total=total, free=free, props=props, loss=float(l), step_ms=sorted(ts)[2], ms=ts, reserved=torch.cuda.memory_reserved(), stats=torch.cuda.memory_stats()['num_ooms'])
if what == 'jax':
    import jax, jax.numpy as jnp
    x = jnp.ones((2048, 2048)); f = jax.jit(lambda a: a @ a)
    for _ in range(20): x2 = f(x)
    x2.block_until_ready(); st = jax.devices()[0].memory_stats(); time.sleep(0.3)
    done(limit=st.get('bytes_limit'), limit_gib=st.get('bytes_limit') / 2**30)
if what == 'cupy':
    import cupy
    free, total = cupy.cuda.runtime.memGetInfo(); xs = []; err = ''
    try:
        while True: xs.append(cupy.empty(64 << 20, dtype=cupy.uint8))
    except Exception as e: err = type(e).__name__ + str(e)[:200]
    time.sleep(0.3)
    done(total=total, free=free, allocated=len(xs) * 64, err=err)
if what == 'async':
    import cupy
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc); xs = []; err = ''
    try:
        while True: xs.append(cupy.empty(64 << 20, dtype=cupy.uint8))
    except Exception as e: err = type(e).__name__ + str(e)[:200]
    time.sleep(0.3)
    done(allocated=len(xs) * 64, err=err)
if what == 'nvml':
    n = ctypes.CDLL('libnvidia-ml.so.1'); n.nvmlInit_v2(); h = ctypes.c_void_p(); n.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h))
    m = (ctypes.c_ulonglong * 3)(); n.nvmlDeviceGetMemoryInfo(h, m)
    class V2(ctypes.Structure): _fields_ = [('version', ctypes.c_uint), ('total', ctypes.c_ulonglong), ('reserved', ctypes.c_ulonglong), ('free', ctypes.c_ulonglong), ('used', ctypes.c_ulonglong)]
    v = V2(); v.version = ctypes.sizeof(V2) | 2 << 24; c = n.nvmlDeviceGetMemoryInfo_v2(h, ctypes.byref(v))
    done(v1=list(m), v2=[c, v.total, v.reserved, v.free, v.used])
