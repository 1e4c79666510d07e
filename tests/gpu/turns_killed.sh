#!/bin/bash
# One of two jobs by turns is killed while it is suspended: turns_killed.sh BUILD. How soon its copy on the host is gone, and that the other goes on.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")"); out=${OUT_FOLDER:-$(mktemp -d)}; export XDG_RUNTIME_DIR="$out/runtime"; mkdir -p -m 700 "$XDG_RUNTIME_DIR"; cd "$here" || exit 1
"$build/memfit" run --share killed --memory 12GiB --turns 6 --report "$out/k.json" -- env PAUSE=0.04 python3 turns_program.py 3 100000 8 >"$out/k.out" 2>"$out/k.err" & k=$!
n=0; until [ -e "$XDG_RUNTIME_DIR/memfit/killed.share" ] || [ $n = 300 ]; do sleep 0.1; n=$((n + 1)); done
"$build/memfit" run --share killed --turns 6 -- env PAUSE=0.04 python3 turns_program.py 4 200 8 >"$out/l.out" 2>"$out/l.err" & l=$!
python3 - $k <<'P'
import os, signal, sys, time
def child():
    words = open(f'/proc/{sys.argv[1]}/task/{sys.argv[1]}/children').read().split()
    return int(words[0]) if words else 0
def rss(pid):
    try: return sum(int(w.split()[1]) for w in open(f'/proc/{pid}/status') if w.startswith('VmRSS')) >> 10
    except OSError: return 0
def available(): return int(next(w for w in open('/proc/meminfo') if w.startswith('MemAvailable')).split()[1]) >> 10
while not child(): time.sleep(0.1)
pid = child(); end = time.time() + 180; most = steady = 0
while time.time() < end and steady < 15:
    here = rss(pid); most = max(most, here); time.sleep(0.1); steady = steady + 1 if here > 7000 else 0
print('job', pid, 'has', most, 'MiB on the host while it is suspended' if steady == 15 else 'NOT SUSPENDED', flush=True)
before = available(); t = time.time(); os.kill(pid, signal.SIGKILL)
while rss(pid) > 0 and time.time() - t < 20: time.sleep(0.002)
gone = time.time() - t
while available() < before + 6000 and time.time() - t < 5: time.sleep(0.005)
print('killed: its memory is gone after %.2f s; the host has %d MiB more after %.2f s' % (gone, available() - before, time.time() - t), flush=True)
P
wait $k; echo "the killed one: exit status $?"; wait $l; echo "the other: exit status $? at $SECONDS s"; cut -c1-200 "$out/l.out"; grep -ah memfit: "$out/k.err" "$out/l.err"
