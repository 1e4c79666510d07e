"""A PyTorch job of 8 GiB for tests/gpu/turns.sh: turns_program.py SEED alone STEPS | SEED turns SECONDS. Prints one JSON object: hashes of all losses and of
samples of its memory, and what a step takes. Alone: the hash after each of STEPS steps, the first 200 at the pace of a job, the rest as fast as it goes. By turns: so many seconds of steps of its
own; a step that took more than a second was spent off the card, and is not counted."""
import hashlib, json, os, struct, sys, time
os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'
import torch
seed, alone, much = int(sys.argv[1]), sys.argv[2] == 'alone', float(sys.argv[3])
PAUSE = 0.04  # reading data: leaves the card to others that measure beside us
torch.manual_seed(seed); torch.use_deterministic_algorithms(True)
m = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
o = torch.optim.Adam(m.parameters()); x = torch.randn(4096, 1024, device='cuda'); y = torch.randint(0, 10, (4096,), device='cuda')
ballast = [torch.full((64 << 20,), float(i), device='cuda') for i in range(28)]  # 7 GiB
torch.cuda.synchronize()
h = hashlib.sha256(); hashes = []; paced = []; begin = time.time(); spent = 0.0; away = []
while len(hashes) < much if alone else spent < much:
    s = len(hashes); t = time.time(); o.zero_grad(); l = torch.nn.functional.cross_entropy(m(x), y); l.backward(); o.step()
    ballast[s % 28].add_(1.0); v = float(l); h.update(struct.pack('<dd', v, float(ballast[s % 28][::65537].sum()))); hashes.append(h.hexdigest()[:12])
    if not alone or s < 200: time.sleep(PAUSE)
    took = time.time() - t
    if took > 1: away.append(round(took, 2))
    else: spent += took
    if (not alone or s < 200) and took <= 1: paced.append(took)
end = time.time(); paced.sort()
print(json.dumps(dict(seed=seed, steps=len(hashes), hashes=hashes if alone else hashes[-1:], loss=v, begin=begin, end=end, own_seconds=spent, mean_ms=sum(paced) / len(paced) * 1e3, median_ms=paced[len(paced) // 2] * 1e3, away=away, reserved_mib=torch.cuda.max_memory_reserved() >> 20)), flush=True)
