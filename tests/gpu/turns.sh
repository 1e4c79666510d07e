#!/bin/bash
# memfit run --turns on a card: turns.sh BUILD [SECONDS OF A TURN] [SECONDS OF EACH JOB] [STEPS ALONE]. Two PyTorch jobs of 8 GiB in a share of 12: their losses against runs alone, what the turns
# cost, and in a second share one that is killed while it is suspended.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")"); turn=${2:-60}; much=${3:-68}; steps=${4:-1800}
out=${OUT_FOLDER:-$(mktemp -d)}; export XDG_RUNTIME_DIR="$out/runtime"; mkdir -p -m 700 "$XDG_RUNTIME_DIR"; cd "$here" || exit 1
p="python3 turns_program.py"
"$build/memfit" run --share turns --memory 12GiB --turns "$turn" --report "$out/a.json" -- $p 1 turns "$much" >"$out/a.out" 2>"$out/a.err" & first=$!
sleep 0.5
"$build/memfit" run --share turns --turns "$turn" --report "$out/b.json" -- $p 2 turns "$much" >"$out/b.out" 2>"$out/b.err" & second=$!
$p 1 alone "$steps" >"$out/r1.out" 2>"$out/r1.err" & refs=$!; $p 2 alone "$steps" >"$out/r2.out" 2>"$out/r2.err" & refs="$refs $!"
wait $refs; echo "alone: done at $SECONDS s"
# One of two is killed while it is off the card.
"$build/memfit" run --share killed --memory 12GiB --turns 6 --report "$out/k.json" -- $p 3 turns 600 >"$out/k.out" 2>"$out/k.err" & k=$!
sleep 0.5; "$build/memfit" run --share killed --turns 6 -- $p 4 turns 14 >"$out/l.out" 2>"$out/l.err" & l=$!
python3 - $k <<'P'
import os, signal, sys, time
def child(): return int(open(f'/proc/{sys.argv[1]}/task/{sys.argv[1]}/children').read().split()[0])
def rss(pid):
    try: return sum(int(w.split()[1]) for w in open(f'/proc/{pid}/status') if w.startswith(('VmRSS', 'RssShmem'))) >> 10
    except OSError: return 0
def available(): return int(next(w for w in open('/proc/meminfo') if w.startswith('MemAvailable')).split()[1]) >> 10
time.sleep(1); pid = child(); print('job', pid, flush=True)
end, most = time.time() + 75, 0
low = available(); steady = 0
while time.time() < end:
    here = rss(pid); most = max(most, here); time.sleep(0.1)
    steady = steady + 1 if here > 6000 else 0
    if steady == 15: break
print('host copy', most, 'MiB in the process; after', steady, 'looks above 6000')
before = available(); t = time.time(); os.kill(pid, signal.SIGKILL)
while rss(pid) > 0 and time.time() - t < 20: time.sleep(0.005)
gone = time.time() - t
while available() < before + 6000 and time.time() - t < 5: time.sleep(0.005)
print('killed while suspended: its memory gone after %.2f s, the host has %d MiB more after %.2f s' % (gone, available() - before, time.time() - t), flush=True)
P
wait $k; echo "killed: exit status $?"; wait $l; echo "the other: exit status $? at $SECONDS s"; grep -a memfit: "$out/k.err" "$out/l.err"
wait $first; echo "a: exit status $?"; wait $second; echo "b: exit status $? at $SECONDS s"; grep -ah "memfit:" "$out"/[ab].err
python3 - "$out" <<'P'
import json, sys
r = {n: json.loads(open(f'{sys.argv[1]}/{n}.out').read().strip().split('\n')[-1]) for n in ('r1', 'r2', 'a', 'b')}
for job, ref in (('a', 'r1'), ('b', 'r2')):
    n = r[job]['steps']
    equal = n <= r[ref]['steps'] and r[ref]['hashes'][n - 1] == r[job]['hashes'][0]
    print(job, 'steps', n, 'losses bit-equal to those alone:', equal, '; a step takes %.2f ms in its turns, %.2f alone (means)' % (r[job]['mean_ms'], r[ref]['mean_ms']), 'away', r[job]['away'], 'reserved', r[job]['reserved_mib'])
wall = max(r['a']['end'], r['b']['end']) - min(r['a']['begin'], r['b']['begin'])
by_alone = sum(r[j]['steps'] * r[f]['mean_ms'] / 1e3 for j, f in (('a', 'r1'), ('b', 'r2')))
by_own = sum(r[j]['own_seconds'] for j in 'ab')
print('together %.1f s; the same steps alone, one after the other, %.1f s at the pace measured alone: %.1f %%; %.1f s at their own pace: %.1f %%' % (wall, by_alone, 100 * by_alone / wall, by_own, 100 * by_own / wall))
for n in 'abk':
    j = json.load(open(f'{sys.argv[1]}/{n}.json')); print(n, {k: j[k] for k in ('status', 'suspended', 'away_seconds', 'turns_refused', 'peak_bytes')})
P
