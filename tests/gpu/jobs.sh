#!/bin/bash
# Several jobs on a card: jobs.sh BUILD. Four at a quarter of it, one of them asking for more; what a killed process had, and how soon it is there again.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")"); out=${OUT_FOLDER:-$(mktemp -d)}; mkdir -p "$out"; cd "$here" || exit 1
for i in 1 2 3 4; do
    timeout -k 5 100 "$build/memfit" run -q --memory 25% --report "$out/q$i.json" -- python3 -c "
import time, torch
a = torch.randn(4096, 4096, device='cuda')
total = torch.cuda.mem_get_info()[1]
for i in range(200): b = torch.tanh(a @ a)
print('quarter $i:', total, float(b.sum()), time.time())
if $i == 4: torch.empty(40 << 30, dtype=torch.uint8, device='cuda')" >"$out/q$i.out" 2>"$out/q$i.err" &
    pids="$pids $!"
done
i=0; for p in $pids; do i=$((i + 1)); wait $p; r=$?; echo "$(cat "$out/q$i.out"): exit status $r; $(grep -a "Error" "$out/q$i.err" | tail -n 1 | cut -c1-110); $(grep -a -A3 "^memfit: refused" "$out/q$i.err" | cut -c1-130)"; done
timeout -k 5 100 "$build/memfit" run -q --memory 8GiB -- python3 -c '
import os, signal, subprocess, sys, time, torch
hold = "import torch, time; x = torch.empty(6 << 30, dtype=torch.uint8, device=\"cuda\"); print(\"held\", flush=True); time.sleep(100)"
for k in range(5):
    child = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True); child.stdout.readline()
    try: torch.empty(4 << 30, dtype=torch.uint8, device="cuda"); print("NOT HELD")
    except torch.OutOfMemoryError: pass
    t = time.time(); os.kill(child.pid, signal.SIGKILL)
    while True:
        try: x = torch.empty(6 << 30, dtype=torch.uint8, device="cuda"); break
        except torch.OutOfMemoryError: time.sleep(0.001)
    print("killed with 6 of 8 GiB: another process has them after %.0f ms" % ((time.time() - t) * 1e3), flush=True); del x; torch.cuda.empty_cache(); child.wait()' 2>"$out/killed.err"
echo "exit status $?"
