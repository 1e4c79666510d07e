"""What a step costs more under a limit, with a trace: side_by_side.py BUILD [ROUNDS]. Four processes with the same model: two plain (their difference is the noise), one under memfit run --memory
--trace, one that memfit.limit was called in. They compute by turns, a block of steps each, so that each block has the card to itself and all see the same clocks; the ratio is taken round by round."""
import json, os, statistics, subprocess, sys, time

if len(sys.argv) > 2 and sys.argv[1] == "worker":
    import torch
    if sys.argv[2] == "attach":
        import memfit
        memfit.limit("8GiB")
    nn = torch.nn
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    net = nn.Sequential(*[nn.Sequential(nn.Conv2d(64 if i else 3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for i in range(8)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    mlp = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()

    def make(model, x):
        optimizer, y = torch.optim.Adam(model.parameters()), torch.randint(0, 10, (len(x),), device="cuda")

        def step():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return step
    kinds = {"cnn": make(net, torch.randn(64, 3, 64, 64, device="cuda")), "mlp": make(mlp, torch.randn(256, 64, device="cuda"))}
    blocks = []

    def grow():  # the allocator's own calls into the driver: 32 blocks taken and given back
        xs = [torch.empty(32 << 20, dtype=torch.uint8, device="cuda") for _ in range(32)]
        del xs
        torch.cuda.empty_cache()
    kinds["cudaMalloc"] = grow
    for step in kinds.values():
        for _ in range(20):
            step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for line in sys.stdin:
        kind, count = line.split()
        step = kinds[kind]
        step()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(int(count)):
            step()
        torch.cuda.synchronize()
        print((time.perf_counter() - begin) * 1e3 / int(count), flush=True)
    sys.exit(0)

build, rounds = os.path.realpath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20
deadline = time.time() + float(os.environ.get("SECONDS_MOST", "45"))
me = [sys.executable, os.path.realpath(__file__), "worker"]
trace = os.environ.get("TRACE", "/tmp/memfit-side-by-side-%d" % os.getpid())
ways = {"plain": me + ["plain"], "again": me + ["plain"], "attach": me + ["attach"],
        "limit": [build + "/memfit", "run", "-q", "--memory", "8GiB", "--trace", trace, "--"] + me + ["plain"]}
workers = {n: subprocess.Popen(c, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for n, c in ways.items()}
for n, w in workers.items():
    if w.stdout.readline() != "ready\n":
        sys.exit("%s did not start" % n)
took = {k: {n: [] for n in ways} for k in ("cnn", "mlp", "cudaMalloc")}
counts = {"cnn": 15, "mlp": 100, "cudaMalloc": 4}
done = 0
for r in range(rounds):
    order = list(ways)[r % 4:] + list(ways)[:r % 4]
    for kind in took:
        for n in order:
            workers[n].stdin.write("%s %d\n" % (kind, counts[kind]))
            workers[n].stdin.flush()
            took[kind][n].append(float(workers[n].stdout.readline()))
    done += 1
    if time.time() > deadline:
        break
for w in workers.values():
    w.stdin.close()
for w in workers.values():
    w.wait()
for kind in took:
    base = took[kind]["plain"]
    for n in ("again", "limit", "attach"):
        ratios = sorted(a / b for a, b in zip(took[kind][n], base))
        low, high = ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]
        print("%-10s %-7s %.4f ms against %.4f; ratio by rounds %.4f in the median (half of them %.4f to %.4f), of the medians %.4f, of the best %.4f, %d rounds" % (
            kind, n, statistics.median(took[kind][n]), statistics.median(base), statistics.median(ratios), low, high, statistics.median(took[kind][n]) / statistics.median(base), min(took[kind][n]) / min(base), done))
json.dump(took, open(os.environ["RAW"], "w")) if "RAW" in os.environ else None
