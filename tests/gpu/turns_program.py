"""A PyTorch job for tests/gpu/turns.sh: turns_program.py SEED STEPS GIB. STEPS may be seconds, as 35s. Prints one JSON object: a hash of all losses and of samples of its memory, which all of
it is written to again and again, when it began and ended, and what a step took. With GO=FILE it waits for that file, its imports done, before it touches the card."""
import hashlib, json, os, struct, sys, time
os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'
import torch
seed, blocks, pause = int(sys.argv[1]), int(float(sys.argv[3]) * 4) - 4, float(os.environ.get('PAUSE', '0'))
seconds, steps = (float(sys.argv[2][:-1]), None) if sys.argv[2][-1] == 's' else (None, int(sys.argv[2]))
while 'GO' in os.environ and not os.path.exists(os.environ['GO']): time.sleep(0.02)
if 'GO' in os.environ and os.path.getsize(os.environ['GO']): steps = int(open(os.environ['GO']).read())
go = time.time()
torch.manual_seed(seed); torch.use_deterministic_algorithms(True)
m = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
o = torch.optim.Adam(m.parameters()); x = torch.randn(4096, 1024, device='cuda'); y = torch.randint(0, 10, (4096,), device='cuda')
ballast = [torch.full((64 << 20,), float(i), device='cuda') for i in range(blocks)]  # 256 MiB each
torch.cuda.synchronize()
h = hashlib.sha256(); took = []; begin = time.time(); s = 0
while s < steps if steps else time.time() - begin < seconds:
    t = time.time(); o.zero_grad(); l = torch.nn.functional.cross_entropy(m(x), y); l.backward(); o.step()
    b = ballast[s % blocks].add_(1.0); v = float(l.detach()); h.update(struct.pack('<dd', v, float(b[::65537].sum())))
    time.sleep(pause) if pause else None; took.append(time.time() - t); s += 1
end = time.time(); h.update(struct.pack('<%dd' % blocks, *[float(b.sum(dtype=torch.float64)) for b in ballast]))
took.sort()
print(json.dumps(dict(seed=seed, steps=s, hash=h.hexdigest(), loss=v, go=go, begin=begin, end=end, mean_ms=sum(took) / s * 1e3, median_ms=took[s // 2] * 1e3, longest=[round(t, 2) for t in took[-3:]], reserved_mib=torch.cuda.max_memory_reserved() >> 20)), flush=True)
