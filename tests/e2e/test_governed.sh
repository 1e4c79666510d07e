#!/bin/sh
# memfit run with a limit, on the fake driver: the limit, the story of a refusal, traces, shares of several jobs, turns, bad use.
set -u
logs=$MEMFIT_SOURCE/tests/fixtures/oom-logs
. "$(dirname "$0")/lib.sh"
cd "$dir" || exit 1
echo precious >text
export MEMFIT_LIB_NVML="${FAKE_NVML_LIBRARY:-}"

# ---- a limit, on the fake driver: a card of 64 GiB for the driver, of 8 GiB for NVML ----
if [ -n "${MINI_DRIVER_FOLDER:-}" ] && [ -n "${FAKE_NVML_LIBRARY:-}" ]; then
    cat >fill.py <<'P'
import ctypes, sys
cu = ctypes.CDLL('libcuda.so.1'); p = ctypes.c_uint64(); n = 0; free = ctypes.c_size_t(); total = ctypes.c_size_t()
assert cu.cuInit(0) == 0
assert cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
while (code := cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(64 << 20))) == 0 and n < 200: n += 1
print(total.value >> 20, free.value >> 20, n, code)
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
P
    mkdir runtime; export XDG_RUNTIME_DIR="$dir/runtime"
    case $("$MEMFIT" run -q --memory 4GiB -- sh -c 'echo $MEMFIT_GOVERN') in "$dir/runtime/"*) ;; *) fail "the share lies elsewhere" ;; esac
    governed() { LD_LIBRARY_PATH="$MINI_DRIVER_FOLDER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$MEMFIT" run "$@"; }
    unset FAKE_NVML_PROCESSES FAKE_NVML_LATE
    [ "$(LD_LIBRARY_PATH="$MINI_DRIVER_FOLDER" python3 fill.py)" = "65536 65536 200 0" ] || fail "the fake driver alone"
    # 4 GiB less 576 MiB for the context: 55 blocks of 64 MiB.
    out=$(governed --memory 4GiB --report report -- python3 fill.py 5 2>err); [ $? = 5 ] || fail "a limit: exit $?"
    [ "$out" = "4096 3520 55 2" ] || fail "a limit of 4 GiB: $out"
    holds report "j['limit_bytes'] == 4 << 30 and j['refused'] == 1 and 0 < j['charged_peak_bytes'] <= 4 << 30" || fail "a limit: $(cat report)"
    grep -q '1 request over the limit of 4.00 GiB was refused' err || fail "a limit: no word of the refusal: $(cat err)"
    is report cause limit
    # The story: who held what, all of it, in the text and in the report.
    holds report "len(j['denied']) == 1 and j['denied'][0]['outcome'] == 'refused' and sum(o['bytes'] for o in j['denied'][0]['owners']) == j['denied'][0]['in_use_bytes'] == 4 << 30" || fail "denied: $(cat report)"
    holds report "{o['class'] for o in j['denied'][0]['owners']} == {'linear', 'context'} and j['denied'][0]['noted_in_ns'] > 0" || fail "denied: $(cat report)"
    grep -q 'refused 64.00 MiB of card 0 to process .*: of 4.00 GiB, 4.00 GiB were in use' err && grep -q '3.44 GiB .*cuMemAlloc, 55 blocks' err && grep -q '576.00 MiB  CUDA context' err &&
        grep -q 'the limit is 64.00 MiB too small for this request' err || fail "the story: $(cat err)"
    # Refused, freed, tried again, got it: one story, and no failure.
    cat >again.py <<'P'
import ctypes
cu = ctypes.CDLL('libcuda.so.1'); a = ctypes.c_uint64(); b = ctypes.c_uint64(); take = lambda p, n: cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(n << 20))
assert cu.cuInit(0) == 0 and take(a, 3000) == 0 and take(b, 2000) == 2 and take(b, 2000) == 2 and cu.cuMemFree_v2(a) == 0 and take(b, 2000) == 0
P
    governed --memory 4GiB --report report -- python3 again.py 2>err || fail "refused, then granted: exit $?"
    holds report "[(d['outcome'], d['tries'], d['freed_bytes']) for d in j['denied']] == [('granted-later', 3, 3000 << 20)] and j['cause'] is None" || fail "refused, then granted: $(cat report)"
    grep -q 'refused 1.95 GiB to process [0-9]*; it freed 2.93 GiB, tried again and got it' err || fail "refused, then granted: $(cat err)"
    # A framework that is short inside a pool of its own: nothing was refused, so what was held when most was is told.
    cat >pool.py <<'P'
import ctypes, sys, time
cu = ctypes.CDLL('libcuda.so.1'); p = ctypes.c_uint64()
assert cu.cuInit(0) == 0 and cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(3 << 30)) == 0
time.sleep(0.6); assert cu.cuMemFree_v2(p) == 0
sys.stderr.write(open(sys.argv[1]).read()); sys.exit(1)
P
    governed --memory 4GiB --report report -- python3 pool.py "$logs/jax-limit-default.log" 2>err; [ $? = 1 ] || fail "a pool of its own: exit $?"
    holds report "j['denied'] == [] and j['refused'] == 0 and j['held_bytes'] == sum(o['bytes'] for o in j['held']) == (3 << 30) + (576 << 20)" || fail "a pool of its own: $(cat report)"
    grep -q 'the limit of 4.00 GiB refused nothing; 3.56 GiB of card 0 were held' err && grep -q '3.00 GiB .*cuMemAlloc, 1 block' err && grep -q '576.00 MiB  CUDA context' err || fail "a pool of its own: $(cat err)"
    # The story of a program that memfit did not start: memfit run --story.
    echo no >plain; expect 5 "no file of facts" "the story of another file" "$MEMFIT" run --story plain
    expect 5 "No such file" "the story of nothing" "$MEMFIT" run --story missing
    expect 2 "runs none" "a story and a command" "$MEMFIT" run --story plain -- touch ran
    # A trace: one file a process and card, also of a process that is killed; without a limit too.
    governed -q --trace tr -- python3 fill.py >out 2>err || fail "--trace: exit $?"
    [ "$(cat out)" = "65536 65536 200 0" ] && [ "$(ls tr.* | wc -l)" = 1 ] || fail "--trace: $(cat out) $(ls)"
    "$MEMFIT" replay --json tr.* >out || fail "a trace is not read"
    holds out "j['events'] == 202 and j['peak_live_bytes'] == (201 * 64 + 576) << 20" || fail "a trace: $(cat out)"
    rm tr.*; governed -q --memory 4GiB --trace tr -- sh -c 'python3 fill.py & wait; python3 -c "
import ctypes, os
cu = ctypes.CDLL(\"libcuda.so.1\"); p = ctypes.c_uint64(); cu.cuInit(0)
for i in range(10): cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(64 << 20))
os.kill(os.getpid(), 9)"' >out 2>err
    [ "$(ls tr.* | wc -l)" = 2 ] || fail "two processes, traces: $(ls tr.*)"
    for t in tr.*; do "$MEMFIT" replay --json "$t" >out || fail "$t is not read"; key events out; done >sums
    [ "$(sort -n sums | tr '\n' ' ')" = "11 56 " ] || fail "two traces: $(cat sums)" # 10 and the context; 55 and the context
    # One program after the other, ended or killed: what one held is free when the next begins.
    cat >two.py <<'P'
import ctypes, os, sys
cu = ctypes.CDLL('libcuda.so.1'); p = ctypes.c_uint64()
assert cu.cuInit(0) == 0 and cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(2 << 30)) == 0
if len(sys.argv) > 1: os.kill(os.getpid(), 9)
P
    for first in "two.py" "two.py killed"; do
        rm tr.*; governed -q --trace tr -- sh -c "python3 $first; python3 two.py" 2>err || fail "one after the other: exit $? $(cat err)"
        "$MEMFIT" report tr --json >out || fail "one after the other: report: exit $?"
        holds out "j['peak_live_bytes'] == (2 << 30) + (576 << 20)" || fail "one after the other ($first): $(cat out)"
    done
    # Side by side they add up, although the first is long silent before it ends.
    sed 's/^if.*/import time; time.sleep(1.5 if len(sys.argv) > 1 else 0)/' two.py >side.py
    rm tr.*; governed -q --trace tr -- sh -c 'python3 side.py first & sleep 0.7; python3 side.py; wait' || fail "side by side: exit $?"
    "$MEMFIT" report tr --json >out && holds out "j['peak_live_bytes'] == 2 * ((2 << 30) + (576 << 20))" || fail "side by side: $(cat out)"
    # Stacks: by frame pointers where there is no unwinder, who called whom, in the words of its functions.
    cat >calls.c <<'P'
#include <dlfcn.h>
#include <stdint.h>
#include <stddef.h>
static int (*take)(uint64_t *, size_t);
__attribute__((noinline)) int layer_of_model(int n) { uint64_t p; int c = take(&p, (size_t)n << 20); __asm__ volatile("" ::: "memory"); return c; }
__attribute__((noinline)) int training_step(void) { int c = layer_of_model(64); __asm__ volatile("" ::: "memory"); return c; }
int main(void)
{
    void *d = dlopen("libcuda.so.1", RTLD_NOW);
    take = (int (*)(uint64_t *, size_t))dlsym(d, "cuMemAlloc_v2");
    return ((int (*)(unsigned))dlsym(d, "cuInit"))(0) || training_step() || training_step();
}
P
    if gcc -O1 -fno-omit-frame-pointer -rdynamic calls.c -ldl -o calls 2>/dev/null; then
        rm tr.*; governed -q --trace tr -- ./calls || fail "stacks: exit $?"
        "$MEMFIT" report tr.* --flame flame >out || fail "stacks: report: exit $?"
        grep -q 'main (calls);training_step (calls);layer_of_model (calls);calls: cuMemAlloc 134217728$' flame || fail "stacks: $(cat flame)"
    fi
    rm tr.*; expect 125 "folder of the trace" "a trace without a folder" "$MEMFIT" run --trace missing/tr -- touch ran
    expect 2 "another kind" "a trace over a text" "$MEMFIT" run --trace text -- touch ran
    # PyTorch then lists everybody on the card: they are not to blame, and nobody is to be killed for it.
    governed --memory 4GiB --report report -- sh -c "python3 fill.py; cat $logs/torch-other-process.log >&2; exit 1" >out 2>err; [ $? = 1 ] || fail "a limit and a log: exit $?"
    is report cause limit
    grep -q '^limit: ' err && grep -q 'it was this limit' err && ! grep -q 'kill [0-9]' err || fail "a limit and a log: $(cat err)"
    [ "$(governed -q --memory 50% -- python3 fill.py 2>err)" = "4096 3520 55 2" ] || fail "half of the card: $(cat err)"
    # The whole tree has one limit: what a first process still holds is not there for the second.
    out=$(governed -q --memory 4GiB -- sh -c 'python3 fill.py & sleep 0; wait; python3 fill.py' 2>err)
    [ "$out" = "4096 3520 55 2
4096 3520 55 2" ] || fail "one after the other: $out"
    [ "$(governed -q --memory 4GiB -- env -u LD_PRELOAD python3 fill.py 2>err)" = "65536 65536 200 0" ] || fail "without the library nothing is limited, as the docs say"
    [ "$(governed -q --memory 4GiB -- sh -c 'echo $MEMFIT_GOVERN')" != "" ] || fail "no share"
    [ -z "$(ls runtime)" ] || fail "a share is left behind"
    # A share of several jobs: what one holds the other has not; it is set while they run; the last one takes it away.
    expect 5 "no share" "--set without a job" "$MEMFIT" run --set team --memory 4GiB
    expect 5 "no share" "--set without a job and without a driver" env MEMFIT_LIB_NVML=/nonexistent/libnvidia-ml.so.1 "$MEMFIT" run --set team --memory 4GiB
    cat >hold.py <<'P'
import ctypes, os, sys, time
cu = ctypes.CDLL('libcuda.so.1'); p = ctypes.c_uint64(); assert cu.cuInit(0) == 0
def take(n): return cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(n << 20))
assert take(2048) == 0
open(sys.argv[1], 'w').write('ready'); t = time.time()
while not os.path.exists(sys.argv[2]) and time.time() - t < 60: time.sleep(0.02)
print(take(1024))
P
    governed -q --share team --memory 4GiB -- python3 hold.py holds go >held 2>err & holder=$!
    n=0; until [ -s holds ] || [ $n = 500 ]; do sleep 0.05; n=$((n + 1)); done
    # 4096 less the holder's 576 + 2048 less our 576: 14 blocks of 64 MiB.
    [ "$(governed -q --share team -- python3 fill.py 2>err2)" = "4096 896 14 2" ] || fail "two jobs in a share: $(cat err2)"
    expect 2 "has 4.00 GiB" "a share of another size" "$MEMFIT" run --share team --memory 5GiB -- touch ran
    out=$("$MEMFIT" run --set team --memory 3GiB) || fail "--set: exit $?"
    [ "$out" = "team: 3.00 GiB, was 4.00 GiB; 1 job, 2.56 GiB in use" ] || fail "--set: $out"
    touch go; wait $holder; [ "$(cat held)" = 2 ] || fail "after --set: $(cat held)"
    [ -z "$(ls runtime/memfit)" ] || fail "a share is left behind: $(ls runtime/memfit)"
    # One that is killed with the rest of its job: its share goes on for the others at once, and is made anew after all are gone.
    rm -f holds go; LD_LIBRARY_PATH="$MINI_DRIVER_FOLDER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$MEMFIT" run -q --share team --memory 4GiB -- python3 hold.py holds go >held 2>err & holder=$!
    n=0; until [ -s holds ] || [ $n = 500 ]; do sleep 0.05; n=$((n + 1)); done
    kill -KILL $holder; wait $holder 2>/dev/null
    n=0; until "$MEMFIT" run --set team --memory 4GiB 2>&1 | grep -q 'no share\|no job' || [ $n = 100 ]; do sleep 0.05; n=$((n + 1)); done # its program ends with it
    out=$(governed -q --share team --memory 5GiB -- python3 fill.py 2>err); [ "$out" = "5120 4544 71 2" ] || fail "a share whose job was killed: $out $(cat err)"
    echo damaged >runtime/memfit/team.share; chmod 600 runtime/memfit/team.share
    expect 125 "damaged" "a damaged share" "$MEMFIT" run --share team --memory 4GiB -- touch ran
    expect 5 "damaged" "a damaged share is not set" "$MEMFIT" run --set team --memory 4GiB
    [ "$(cat runtime/memfit/team.share)" = damaged ] || fail "a damaged share was changed"
    chmod 644 runtime/memfit/team.share
    expect 125 "this user alone" "a share that others may read" "$MEMFIT" run --share team --memory 4GiB -- touch ran
    rm runtime/memfit/team.share; rmdir runtime/memfit; ln -s /tmp runtime/memfit
    expect 125 "this user alone" "a folder that is a link" "$MEMFIT" run --share team --memory 4GiB -- touch ran
    rm runtime/memfit
    expect 125 "cannot be made" "no folder" env XDG_RUNTIME_DIR=/nonexistent/place "$MEMFIT" run --share team --memory 4GiB -- touch ran
    # memfit in a folder whose name LD_PRELOAD would cut; a list there that is too long; a limit inside a limit.
    mkdir "a b:c"; cp "$MEMFIT" "a b:c/memfit"; cp "$(dirname "$MEMFIT")/libmemfit-govern.so" "a b:c/"
    out=$(LD_LIBRARY_PATH="$MINI_DRIVER_FOLDER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "a b:c/memfit" run -q --memory 4GiB -- python3 fill.py 2>err); [ "$out" = "4096 3520 55 2" ] || fail "a blank in the path: $out $(cat err)"
    [ -z "$(ls -d runtime/memfit-run-*/libmemfit* 2>/dev/null)" ] || fail "a link is left: $(ls -d runtime/memfit-run-*/*)"
    expect 2 "no room for memfit's library" "a long LD_PRELOAD" env LD_PRELOAD="$(printf ':%.0s' $(seq 8180))" "$MEMFIT" run --memory 4GiB -- touch ran
    for o in "--memory 3GiB" "--memory 8GiB" "--share inner --memory 3GiB" "--trace inner.trace"; do
        out=$(governed -q --memory 4GiB -- sh -c "'$MEMFIT' run $o -- touch ran" 2>&1); [ $? = 2 ] || fail "$o inside a limit: exit $?"
        case $out in *"limits to 4.00 GiB on each card already"*) ;; *) fail "$o inside a limit: $out" ;; esac
    done
    [ ! -e ran ] || fail "a limit inside a limit was taken"
    [ "$(governed -q --memory 4GiB -- "$MEMFIT" run -q -- python3 fill.py 2>err)" = "4096 3520 55 2" ] || fail "memfit run inside a limit: $(cat err)"
    [ "$(governed -q --trace outer.trace -- "$MEMFIT" run -q --memory 4GiB -- python3 fill.py 2>err)" = "4096 3520 55 2" ] || fail "a limit inside a trace: $(cat err)"; rm -f outer.trace.*
    # A library that was loaded to find its own imports first, while other threads load libraries, too.
    cat >deep.py <<'P'
import ctypes, os, sys, threading
import _ctypes
cu = ctypes.CDLL('libcuda.so.1'); assert cu.cuInit(0) == 0
going = True
def load():
    while going: _ctypes.dlclose(_ctypes.dlopen(sys.argv[1], os.RTLD_LAZY))
threads = [threading.Thread(target=load) for _ in range(3)]
for t in threads: t.start()
deep = ctypes.CDLL('libdeepcaller.so', mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
got = []
for f in (deep.deep_linked, deep.deep_looked_up):
    n = 0
    while n < 200 and f(ctypes.c_size_t(64 << 20)) == 0: n += 1
    got.append(n)
    for i in range(200): ctypes.CDLL(sys.argv[1]).ask_next
going = False
for t in threads: t.join()
print(*got)
P
    if [ -e "$MINI_DRIVER_FOLDER/libdeepcaller.so" ] && ! nm -D "$(dirname "$MEMFIT")/libmemfit-govern.so" | grep -q 'san_init'; then
        [ "$(governed -q --memory 4GiB -- python3 deep.py "$MINI_DRIVER_FOLDER/libnextfirst.so" 2>err)" = "55 0" ] || fail "RTLD_DEEPBIND: $(cat err)"
    fi
    # A process that cleared its environment is not limited: that is told, with what the driver shows for it.
    rm -f nvml; FAKE_NVML_FILE="$dir/nvml" governed --memory 4GiB --report report -- env -u LD_PRELOAD sh -c 'echo "0:$$:6000" >nvml; sleep 1' 2>err || fail "outside: exit $?"
    grep -q '(sh -c .*) was not limited: it had 5.86 GiB' err && holds report "len(j['outside']) == 1 and j['outside'][0]['card_peak_bytes'] == 6000 << 20" || fail "outside: $(cat err)"
    # One with the library in it is: before its first request, with memory, and when it has given up its slot and the driver is slow.
    for b in 900 6000; do
        rm -f nvml; FAKE_NVML_FILE="$dir/nvml" governed --memory 4GiB --report report -- sh -c "echo 0:\$\$:$b >nvml; sleep 0.5" 2>err || fail "a context: exit $?"
        holds report "j['outside'] == []" && ! grep -q 'not limited' err || fail "a context: $(cat err)"
    done
    cat >late.py <<'P'
import ctypes, os, time
cu = ctypes.CDLL('libcuda.so.1'); p = ctypes.c_uint64(); assert cu.cuInit(0) == 0 and cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(3 << 30)) == 0
open('nvml', 'w').write('0:%d:3700' % os.getpid()); time.sleep(0.5)
cu.fake_map.restype = ctypes.c_void_p; cu.fake_map(ctypes.c_size_t(1 << 30), 0x8000)  # takes a while to be torn down
P
    rm -f nvml; FAKE_NVML_FILE="$dir/nvml" governed --memory 4GiB --report report -- python3 late.py 2>err || fail "one that ends: exit $?"
    holds report "j['outside'] == []" && ! grep -q 'not limited' err || fail "one that ends: $(cat err)"
    if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups true 2>/dev/null; then
        rm -f nvml; FAKE_NVML_FILE="$dir/nvml" governed --memory 4GiB --report report -- sh -c 'setpriv --reuid=65534 --clear-groups sleep 1 & echo "0:$!:5000" >nvml; wait' 2>err || fail "another user: exit $?"
        grep -q 'sleep 1) was not limited: it had 4.88 GiB' err || fail "another user: $(cat err)"
    fi
    rm -f nvml; FAKE_NVML_FILE="$dir/nvml" governed --trace outer.trace --report report -- sh -c 'echo "0:$$:6000" >nvml; sleep 0.5' 2>err || fail "no limit: exit $?"
    holds report "j['outside'] == []" || fail "no limit, and yet outside: $(cat err)"; rm -f nvml
    # Turns: two jobs that do not fit together; the fake driver holds the calls of a process that is suspended.
    cat >turn.py <<'P'
import ctypes, os, sys, time
open('begun-' + sys.argv[1], 'w').close()
cu = ctypes.CDLL('libcuda.so.1'); p = ctypes.c_uint64(); assert cu.cuInit(0) == 0
def take(n): return cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(n << 20))
free = ctypes.c_size_t(); total = ctypes.c_size_t(); cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
assert free.value == (4096 - 576) << 20 and take(2500) == 0, free.value
left = int(sys.argv[2])
while left:
    left -= len(sys.argv) < 4 or os.path.exists('begun-' + sys.argv[3])  # counted only when the other has begun
    assert take(1) == 0 and cu.cuMemFree_v2(p) == 0
    open('steps', 'a').write(sys.argv[1]); time.sleep(0.01)
P
    mkdir locks; rm -f begun-*; export FAKE_DRIVER_LOCKS="$dir/locks" MEMFIT_LIB_CUDA="$MINI_DRIVER_FOLDER/libcuda.so.1"
    governed -q --share turns --memory 4GiB --turns 1 --report first -- python3 turn.py a 180 b 2>err & first=$!
    n=0; until [ -s steps ] || [ $n = 500 ]; do sleep 0.05; n=$((n + 1)); done
    governed -q --share turns --turns 1 --report second -- python3 turn.py b 180 2>err2 || fail "turns, second: $(cat err2)"
    wait $first || fail "turns, first: $(cat err)"
    holds first "j['status'] == 0 and j['suspended'] >= 1 and j['away_seconds'] > 0.5 and j['refused'] == 0 and j['turns_refused'] is None" || fail "turns: $(cat first)"
    [ "$(tr -d a <steps | wc -c)" = 180 ] && [ "$(tr -d b <steps | wc -c)" -ge 180 ] && grep -q 'a.*b.*a' steps || fail "turns: $(cat steps)"
    for l in $(ls locks); do [ ! -e "/proc/$l" ] || fail "turns: process $l is still suspended"; done # one may end while it is
    [ -z "$(ls runtime/memfit)" ] || fail "turns: something is left: $(ls runtime/memfit)"
    rm -f locks/*
    # The block for the copy, which the driver wants filled, is of huge pages and filled; all else is as it was, and so is that without turns.
    cat >huge.py <<'P'
import ctypes, mmap
POPULATE = 0x8000
cu = ctypes.CDLL('libcuda.so.1'); p = ctypes.c_uint64(); assert cu.cuInit(0) == 0 and cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1 << 20)) == 0
libc = ctypes.CDLL(None)
def seen(at, bytes):
    there = (ctypes.c_ubyte * (bytes // 4096))(); assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(bytes), there) == 0
    for line in open('/proc/self/smaps'):
        w = line.split()
        if '-' in w[0] and w[0][-1] != ':': begin, end = [int(x, 16) for x in w[0].split('-')]
        elif w[0] == 'VmFlags:' and begin <= at < end: return ('huge' if 'hg' in w else 'plain') + ('-full' if all(there) else '')
cu.fake_map.restype = ctypes.c_void_p
def of_driver(bytes, flags): return seen(cu.fake_map(ctypes.c_size_t(bytes), flags), bytes)
print(of_driver(9 << 20, POPULATE), of_driver((101 << 20) + 4096, POPULATE), of_driver(9 << 20, 0), of_driver(1 << 20, POPULATE), end=' ')
assert cu.fake_map(ctypes.c_size_t(0), POPULATE) == 2**64 - 1
mine = mmap.mmap(-1, 9 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
print(seen(ctypes.addressof(ctypes.c_char.from_buffer(mine)), 9 << 20))
P
    if grep -qs madvise /sys/kernel/mm/transparent_hugepage/enabled; then
        out=$(governed -q --share turns --memory 4GiB --turns auto -- python3 huge.py 2>err); [ "$out" = "huge-full huge-full plain plain-full plain" ] || fail "huge pages: $out $(cat err)"
        out=$(governed -q --share turns --memory 4GiB -- python3 huge.py 2>err); [ "$out" = "plain-full plain-full plain plain-full plain" ] || fail "huge pages without turns: $out $(cat err)"
    fi
    # The one that is away is killed: the other goes on, and nothing is left. One that cannot be suspended keeps the cards, and says why.
    rm -f steps; LD_LIBRARY_PATH="$MINI_DRIVER_FOLDER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$MEMFIT" run -q --share turns --memory 4GiB --turns 1 -- python3 turn.py a 10000 2>err & first=$!
    n=0; until [ -s steps ] || [ $n = 500 ]; do sleep 0.05; n=$((n + 1)); done
    governed -q --share turns --turns 1 -- sh -c "python3 turn.py b 20; kill -KILL $first; python3 turn.py b 20" 2>err2 || fail "turns, after a kill: $(cat err2)"
    wait $first 2>/dev/null; [ "$(tr -d a <steps | wc -c)" = 40 ] || fail "turns, after a kill: $(cat steps)"
    # Others have filled the card when one is to come back: it stays suspended until there is room, and nobody is turned away.
    rm -f steps begun-* locks/*; FAKE_DRIVER_FULL="$dir/full" governed -q --share turns --memory 4GiB --turns 1 --report first -- python3 turn.py a 130 b 2>err & first=$!
    n=0; until [ -s steps ] || [ $n = 500 ]; do sleep 0.05; n=$((n + 1)); done
    governed -q --share turns --turns 1 -- sh -c 'python3 turn.py b 20; touch full; python3 turn.py b 60' 2>err2 || fail "turns, a full card: $(cat err2)"
    sleep 1; before=$(wc -c <steps); sleep 0.5; [ "$before" = "$(wc -c <steps)" ] || fail "turns, a full card: it went on"
    rm full; wait $first || fail "turns, a full card: $(cat err)"
    holds first "j['status'] == 0 and j['suspended'] >= 1 and j['turns_refused'] is None" && grep -q 'a.*b.*a' steps || fail "turns, a full card: $(cat first steps)"
    rm -f steps begun-* locks/*; FAKE_DRIVER_CHECKPOINT=801 governed --share turns --memory 4GiB --turns 1 --report first -- python3 turn.py a 150 b 2>err & first=$!
    n=0; until [ -s steps ] || [ $n = 500 ]; do sleep 0.05; n=$((n + 1)); done
    governed -q --share turns --turns 1 --report second -- python3 turn.py b 20 2>err2 || fail "turns, beside one that stays: $(cat err2)"
    wait $first || fail "turns, one that stays: $(cat err)"
    grep -q 'could not be suspended.*801.*managed' err && [ "$(sed 's/a*b*//' steps)" = "" ] || fail "turns, one that stays: $(cat err steps)"
    for t in 0 -1 1.5 60m s "" 86401 99999999999999999999 Auto; do expect 2 "must be auto, or seconds" "turns of '$t'" "$MEMFIT" run --share turns --memory 4GiB --turns "$t" -- touch ran; done
    governed -q --share turns --memory 4GiB --turns 60s -- true 2>err || fail "turns of 60s: $(cat err)"
    expect 2 "cannot suspend" "turns on an old driver" env FAKE_DRIVER_VERSION=12040 LD_LIBRARY_PATH="$MINI_DRIVER_FOLDER" "$MEMFIT" run --share turns --memory 4GiB --turns 1 -- touch ran
    expect 2 "no driver" "turns without a driver" env LD_LIBRARY_PATH= MEMFIT_LIB_CUDA=/nonexistent/libcuda.so.1 "$MEMFIT" run --share turns --memory 4GiB --turns 1 -- touch ran
    [ -z "$(ls runtime/memfit)" ] || fail "a refused job leaves its share: $(ls runtime/memfit)"
    unset MEMFIT_LIB_CUDA FAKE_DRIVER_LOCKS
    # A thread of NVML's takes no signal that is ours: the program's end is seen, signals reach the program.
    n=0; while [ $n -lt 10 ]; do
        n=$((n + 1))
        FAKE_NVML_THREAD=1 timeout 30 "$MEMFIT" run -q --memory 4GiB -- sh -c 'exit 6'; [ $? = 6 ] || fail "beside a thread of NVML's: exit $?"
    done
    FAKE_NVML_THREAD=1 "$MEMFIT" run -q --memory 4GiB -- sh -c 'trap "exit 7" TERM; echo ready >ready; while :; do sleep 0.05; done' & pid=$!
    n=0; until [ -s ready ] || [ $n = 200 ]; do sleep 0.05; n=$((n + 1)); done
    kill -TERM $pid; wait $pid; [ $? = 7 ] || fail "beside a thread of NVML's SIGTERM is lost"
    expect 2 "the card has" "a limit above the card" "$MEMFIT" run --memory 9GiB -- touch ran
    expect 2 "context" "a limit below the context's cost" "$MEMFIT" run --memory 100MiB -- touch ran
    if printf 'int main(void){return 0;}' | gcc -static -x c -o static - 2>/dev/null; then
        expect 2 "statically" "a static program" "$MEMFIT" run --memory 4GiB -- ./static
        printf '#! %s/static -x\n' "$dir" >runs_static; printf '#!%s/runs_static' "$dir" >deeper; chmod +x runs_static deeper
        expect 2 "static is linked statically" "a script of a static program" "$MEMFIT" run --memory 4GiB -- ./runs_static
        expect 2 "static is linked statically" "a script of such a script" "$MEMFIT" run --memory 4GiB -- ./deeper
        "$MEMFIT" run -q -- ./static || fail "a static program without a limit: exit $?"
    fi
    if [ "$(id -u)" = 0 ] && cp "$(command -v true)" setuid && chown 65534 setuid && chmod 4755 setuid; then
        expect 2 "rights" "a program with another user's rights" "$MEMFIT" run --memory 4GiB -- ./setuid
        "$MEMFIT" run -q -- ./setuid || fail "a setuid program without a limit: exit $?"
    fi
    # No room for the job's files: told, nothing is run, nothing is left.
    expect 125 "cannot be made" "a full folder" sh -c 'trap "" XFSZ; ulimit -f 8; exec "$0" run --memory 4GiB -- touch ran' "$MEMFIT"
    # What a killed memfit leaves is gone with the next run, once it is old enough; what a live one has stays.
    mkdir -m 700 runtime/memfit-run-left && touch runtime/memfit-run-left/share && touch -d '1 minute ago' runtime/memfit-run-*
    "$MEMFIT" run -q --memory 4GiB -- sh -c 'touch -d "1 minute ago" "$(dirname "$MEMFIT_GOVERN")"; "$0" run -q --memory 4GiB -- true; [ -e "$MEMFIT_GOVERN" ]' "$MEMFIT" || fail "a live job's folder is gone"
    [ "$(echo $(ls runtime))" = memfit ] || fail "a full folder: something is left: $(ls runtime)"
    if [ "$(id -u)" != 0 ]; then
        chmod 500 runtime; expect 0 "" "a folder that may not be written to: the other is used" "$MEMFIT" run -q --memory 4GiB -- true; chmod 700 runtime
    fi
    su=$(command -v su) && [ -u "$su" ] && [ "$(id -u)" != 0 ] && expect 2 "rights" "a setuid program" "$MEMFIT" run --memory 4GiB -- su
    expect 127 "no such command" "a limit and a missing command" "$MEMFIT" run --memory 4GiB -- no-such-command-here
    [ ! -e ran ] || fail "bad use of a limit did something"
fi
exit $((failures > 0))
