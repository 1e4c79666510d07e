"""What a step costs more under a limit, with a trace: side_by_side.py BUILD [ROUNDS]. Seven processes with the same model: three plain (their difference is the noise), two under memfit run --memory
--trace, two that memfit.limit was called in. They compute by turns, a block of steps each, so that each block has the card to itself and all see the same clocks."""
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
limited = [build + "/memfit", "run", "-q", "--memory", "8GiB", "--trace", trace, "--"] + me + ["plain"]
commands = {"plain": me + ["plain"], "limit": limited, "attach": me + ["attach"]}
order = ["plain", "limit", "attach", "plain", "attach", "limit", "plain"]  # several of each: processes differ by some tenths of a percent, whatever is in them
workers = [(kind, subprocess.Popen(commands[kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)) for kind in order]
for kind, w in workers:
    if w.stdout.readline() != "ready\n":
        sys.exit("%s did not start" % kind)
took = {}


def rounds_of(what, count, most, until):
    times = took[what] = [[] for _ in workers]
    for r in range(most):
        for i in range(len(workers)):
            w = workers[(i + r) % len(workers)][1]
            w.stdin.write("%s %d\n" % (what, count))
            w.stdin.flush()
            times[(i + r) % len(workers)].append(float(w.stdout.readline()))
        if time.time() > until:
            break
    whole = {}
    for (kind, _), t in zip(workers, times):
        whole.setdefault(kind, []).append(statistics.median(t))
    plain = statistics.mean(whole["plain"])
    print("%s: %d rounds; plain %s ms" % (what, len(times[0]), " ".join("%.4f" % t for t in whole["plain"])))
    for kind in ("limit", "attach"):
        print("  %-6s %s ms: %+.2f %% against the mean of the plain ones, who differ by %.2f %%" % (
            kind, " ".join("%.4f" % t for t in whole[kind]), 100 * (statistics.mean(whole[kind]) / plain - 1), 100 * (max(whole["plain"]) / min(whole["plain"]) - 1)))


rounds_of("cnn", 15, rounds, deadline - 6)
rounds_of("mlp", 100, 6, deadline - 3)
rounds_of("cudaMalloc", 4, 6, deadline)
for _, w in workers:
    w.stdin.close()
for _, w in workers:
    w.wait()
if "RAW" in os.environ:
    json.dump({"order": order, "took": took}, open(os.environ["RAW"], "w"))
