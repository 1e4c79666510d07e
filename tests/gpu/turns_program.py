"""A PyTorch job for tests/gpu/turns.sh: turns_program.py SEED STEPS GIB. Prints one JSON object: a hash of all losses and of samples of its memory, which all of it is written to again and
again, when it began and ended, and what a step took."""
import hashlib, json, os, struct, sys, time
os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'
import torch
seed, steps, blocks = int(sys.argv[1]), int(sys.argv[2]), int(float(sys.argv[3]) * 4) - 4
PAUSE = 0.04  # as if data were read: leaves the card to others beside us
torch.manual_seed(seed); torch.use_deterministic_algorithms(True)
m = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
o = torch.optim.Adam(m.parameters()); x = torch.randn(4096, 1024, device='cuda'); y = torch.randint(0, 10, (4096,), device='cuda')
ballast = [torch.full((64 << 20,), float(i), device='cuda') for i in range(blocks)]  # 256 MiB each
torch.cuda.synchronize()
h = hashlib.sha256(); took = []; begin = time.time()
for s in range(steps):
    t = time.time(); o.zero_grad(); l = torch.nn.functional.cross_entropy(m(x), y); l.backward(); o.step()
    b = ballast[s % blocks].add_(1.0); v = float(l.detach()); h.update(struct.pack('<dd', v, float(b[::65537].sum())))
    time.sleep(PAUSE); took.append(time.time() - t)
end = time.time(); h.update(struct.pack('<%dd' % blocks, *[float(b.sum(dtype=torch.float64)) for b in ballast]))
took.sort()
print(json.dumps(dict(seed=seed, steps=steps, hash=h.hexdigest(), loss=v, begin=begin, end=end, mean_ms=sum(took) / steps * 1e3, median_ms=took[steps // 2] * 1e3, longest=[round(t, 2) for t in took[-3:]], reserved_mib=torch.cuda.max_memory_reserved() >> 20)), flush=True)
