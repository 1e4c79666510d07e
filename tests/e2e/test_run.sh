#!/bin/sh
# memfit run: every log of the repository through it, bytes as they were, what is left after the end, bad use, the report.
# RUN_KILLS: how often a main process with eight workers is killed (50 by hand).
set -u
logs=$MEMFIT_SOURCE/tests/fixtures/oom-logs
. "$(dirname "$0")/lib.sh"
cd "$dir" || exit 1

# ---- bad use: nothing is run ----
expect 2 "which command" "no command" "$MEMFIT" run
expect 2 "which command" "no command behind --" "$MEMFIT" run --growth --
expect 2 "too many" "a command without --" "$MEMFIT" run true
expect 2 "belongs to the program" "--json" "$MEMFIT" run --json -- touch ran
expect 2 "unknown option" "an unknown option" "$MEMFIT" run --grwoth -- touch ran
export MEMFIT_LIB_NVML=/nonexistent/libnvidia-ml.so.1 # whatever this machine has
expect 2 "no card to limit" "a limit without a card" "$MEMFIT" run --memory 8GiB -- touch ran
expect 2 "no card to limit" "a limit by its other name" "$MEMFIT" run --gpu-memory 8GiB -- touch ran
expect 2 "no share" "a share that nobody made" "$MEMFIT" run --share mine -- touch ran
expect 2 "no name" "a share of no name" "$MEMFIT" run --share ../mine -- touch ran
expect 2 "nothing without --memory" "--set without a size" "$MEMFIT" run --set mine
expect 2 "it runs none" "--set and a command" "$MEMFIT" run --set mine --memory 8GiB -- touch ran
expect 2 "exclude" "--set and --share" "$MEMFIT" run --set mine --share mine --memory 8GiB
echo precious >text
expect 2 "another kind" "a report over a text" "$MEMFIT" run --report text -- touch ran
expect 125 "missing" "a report that cannot be written" "$MEMFIT" run --report missing/folder/report -- touch ran
[ ! -e ran ] && [ "$(cat text)" = precious ] || fail "bad use did something"
expect 127 "no such command" "a missing command" "$MEMFIT" run -- no-such-command-here
expect 126 "Permission denied" "a command that is no program" "$MEMFIT" run -- "$dir/text"
printf '#!/no/such/interpreter\n' >script; chmod +x script
expect 127 "interpreter" "a script whose interpreter is missing" "$MEMFIT" run -- "$dir/script"
"$MEMFIT" run --help >help || fail "--help: exit $?"
grep -q -- --growth help || fail "--help does not name --growth"

# ---- bytes ----
head -c 1000000 /dev/urandom >random
"$MEMFIT" run -q -- sh -c 'cat; cat random >&2; exit 3' <random >out 2>err
[ $? = 3 ] || fail "exit status 3 was not passed on"
cmp -s random out || fail "standard output is not byte for byte"
cmp -s random err || fail "standard error is not byte for byte"
# A reader that goes away ends the program as it would without us.
timeout 20 "$MEMFIT" run -q -- sh -c 'while echo line >&2; do :; done; exit 9' 2>&1 >/dev/null | head -1 >/dev/null ||
    fail "standard error without a reader"
[ "$(echo hello | "$MEMFIT" run -q -- cat)" = hello ] || fail "standard input"

# ---- every log: the cause that explain finds ----
cause() { sed -n 's/^ *"cause": "\(.*\)",$/\1/p' | head -1; }
for log in "$logs"/*.log; do
    want=$("$MEMFIT" explain --json "$log" | cause)
    "$MEMFIT" run --report report -- sh -c 'cat "$1" >&2; exit 7' sh "$log" 2>err >out
    [ $? = 7 ] || fail "$log: another exit status"
    head -c "$(wc -c <"$log")" err | cmp -s - "$log" || fail "$log: standard error is not as it was"
    [ ! -s out ] || fail "$log: something on standard output"
    got=$(cause <report)
    if [ "$want" = unknown ]; then
        [ -z "$got" ] || fail "$log: cause $got, wanted none"
    else
        [ "$got" = "$want" ] || fail "$log: cause $got, wanted $want"
        grep -q "^$want: " err || fail "$log: the story does not name the cause $want"
    fi
done
"$MEMFIT" run --report report -- sh -c "cat $logs/torch-too-large.log >&2" 2>err || fail "a log and status 0: exit $?"
grep -q 'too-large' err && fail "a program that ended well is explained"
is report cause null

# ---- the report ----
"$MEMFIT" run --report report -- sh -c 'sleep 0.3; exit 4' 2>err
[ $? = 4 ] || fail "with a report: another exit status"
for k in status signal peak_bytes seconds samples host_peak_bytes ended; do [ -n "$(key $k report)" ] || fail "report: no key $k"; done
holds report "j['status'] == 4 and j['signal'] == 0 and j['limit_bytes'] is None and j['denied'] == [] and j['cause'] is None" || fail "report: $(cat report)"
holds report "j['command'][0] == 'sh' and j['samples'] > 0 and j['peak_bytes'] == j['host_peak_bytes'] > 0" || fail "report: figures: $(cat report)"
holds report "any('sleep' in p['name'] for p in j['processes']) and all(p['host_peak_bytes'] > 0 for p in j['processes'])" || fail "report: processes: $(cat report)"
grep -q 'memfit: peak .* of host memory' err || fail "no closing line"
"$MEMFIT" run -q -- true 2>err; [ ! -s err ] || fail "--quiet: $(cat err)"
"$MEMFIT" run --report report -- sh -c 'kill -TERM $$' 2>err; [ $? = 143 ] || fail "ended by SIGTERM: exit $?"
is report signal 15
grep -q 'signal 15' err || fail "the signal is not named"
# Half a gigabyte is seen.
if command -v python3 >/dev/null; then
    "$MEMFIT" run --report report -- python3 -c 'import time; x = bytearray(512 << 20); x[::4096] = b"1" * len(x[::4096]); time.sleep(0.6)' 2>err
    holds report "512 << 20 <= j['peak_bytes'] < 640 << 20" || fail "512 MiB are seen as $(key peak_bytes report)"
fi

# ---- growth: only where nothing is set ----
names='TF_FORCE_GPU_ALLOW_GROWTH XLA_PYTHON_CLIENT_PREALLOCATE PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF CUDA_MODULE_LOADING'
unset $names XLA_CLIENT_MEM_FRACTION
env >before; "$MEMFIT" run -q -- env >after; grep -v '^_=' before >b; grep -v '^_=' after >a; cmp -s a b || fail "without --growth the environment changes"
"$MEMFIT" run -q --growth -- env >out
for v in TF_FORCE_GPU_ALLOW_GROWTH=true XLA_PYTHON_CLIENT_PREALLOCATE=false PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTORCH_ALLOC_CONF=expandable_segments:True CUDA_MODULE_LOADING=LAZY; do
    grep -qx "$v" out || fail "--growth: $v is not set"
done
PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64 XLA_PYTHON_CLIENT_PREALLOCATE=true "$MEMFIT" run -q --growth -- env >out
grep -qx PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64 out && ! grep -q '^PYTORCH_ALLOC_CONF' out && grep -qx XLA_PYTHON_CLIENT_PREALLOCATE=true out ||
    fail "--growth replaces what was set"

# ---- what is left ----
# The program notes its workers' numbers; a worker that was ended and waited for by us is gone.
alive() { # alive FILE: how many of the processes whose numbers it holds live
    n=0; while read -r pid; do case $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) in ''|Z*|X*) ;; *) n=$((n + 1)) ;; esac; done <"$1"; echo $n
}
workers='for i in 1 2 3 4 5 6 7 8; do sleep 60 & echo $! >>workers; done; '
i=0
while [ $i -lt "${RUN_KILLS:-3}" ]; do
    i=$((i + 1)); rm -f workers
    "$MEMFIT" run --report report -- sh -c "$workers"'kill -KILL $$' 2>err; [ $? = 137 ] || fail "killed: exit $?"
    [ "$(wc -l <workers)" = 8 ] && [ "$(alive workers)" = 0 ] || fail "killed: $(alive workers) of $(wc -l <workers) workers are left"
    is report ended 8
done
# One that ignores SIGTERM is killed after the grace; one of its own session is a daemon and lives.
rm -f workers
"$MEMFIT" run --report report -- sh -c 'sh -c "trap \"\" TERM; while :; do sleep 0.1; done" & echo $! >workers
    setsid sh -c "echo \$\$ >daemon; exec sleep 60" & while [ ! -s daemon ]; do sleep 0.05; done; exit 1' 2>err; [ $? = 1 ] || fail "a stubborn worker: exit $?"
[ "$(alive workers)" = 0 ] || fail "a stubborn worker is left"
[ "$(alive daemon)" = 1 ] || fail "a daemon with a session of its own was ended"
kill "$(cat daemon)"
# After status 0 they live on, are named, and may go on writing.
rm -f workers
"$MEMFIT" run --report report -- sh -c '{ sleep 1.5; echo late >&2; } & echo $! >workers; exit 0' 2>err || fail "leftovers: exit $?"
[ "$(alive workers)" = 1 ] || fail "a worker was ended after status 0"
grep -q "2 processes of the program still run" err && grep -q "^  $(cat workers) " err || fail "a worker is not named: $(cat err)"
holds report "len(j['leftovers']) == 2 and j['ended'] == 0" || fail "leftovers are not in the report"
n=0; until grep -q '^late$' err || [ $n = 100 ]; do sleep 0.1; n=$((n + 1)); done
grep -q '^late$' err || fail "what a leftover wrote is lost"
rm -f workers
"$MEMFIT" run --end-leftovers --report report -- sh -c "$workers exit 0" 2>err || fail "--end-leftovers: exit $?"
[ "$(alive workers)" = 0 ] || fail "--end-leftovers leaves $(alive workers)"
is report ended 8
# Workers that end a moment after their parent are not worth a word.
"$MEMFIT" run -- sh -c 'sleep 0.05 & exit 0' 2>err || fail "a short leftover: exit $?"
grep -q 'still run' err && fail "a worker that ends by itself is named"

# ---- a card, by the fake NVML: the program's processes have other numbers here, as in a container ----
if [ -n "${FAKE_NVML_LIBRARY:-}" ]; then
    export MEMFIT_LIB_NVML="$FAKE_NVML_LIBRARY"
    FAKE_NVML_PROCESSES=0:999999990:1000 FAKE_NVML_LATE=0:999999991:2500 "$MEMFIT" run --report report -- sleep 1 2>err || fail "with a card: exit $?"
    holds report "j['peak_bytes'] == 2500 << 20 and j['cards'][0]['others_bytes'] == 1000 << 20 and j['cards'][0]['by_arrival']" || fail "a card: $(cat report)"
    grep -q 'peak 2.44 GiB of 8.00 GiB on card 0, 1000.00 MiB more held by other processes; the batch could be about 3 times as large' err ||
        fail "a card: the closing line is $(cat err)"
    FAKE_NVML_PROCESSES=0:999999990:1000 "$MEMFIT" run --report report -- sleep 1 2>err || fail "with a card: exit $?"
    holds report "j['cards'][0]['peak_bytes'] == 0 and j['peak_bytes'] == j['host_peak_bytes']" || fail "another's bytes are taken for the program's"
    FAKE_NVML_INIT=18 "$MEMFIT" run -- sleep 0.3 2>err || fail "with a driver that refuses: exit $?"
    grep -q 'of host memory' err || fail "with a driver that refuses: no closing line"
fi

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
        grep -q 'a limit of 4.06 GiB would have let this request pass' err || fail "the story: $(cat err)"
    # Refused, freed, tried again, got it: one story, and no failure.
    cat >again.py <<'P'
import ctypes
cu = ctypes.CDLL('libcuda.so.1'); a = ctypes.c_uint64(); b = ctypes.c_uint64(); take = lambda p, n: cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(n << 20))
assert cu.cuInit(0) == 0 and take(a, 3000) == 0 and take(b, 2000) == 2 and take(b, 2000) == 2 and cu.cuMemFree_v2(a) == 0 and take(b, 2000) == 0
P
    governed --memory 4GiB --report report -- python3 again.py 2>err || fail "refused, then granted: exit $?"
    holds report "[(d['outcome'], d['tries'], d['freed_bytes']) for d in j['denied']] == [('granted-later', 3, 3000 << 20)] and j['cause'] is None" || fail "refused, then granted: $(cat report)"
    grep -q 'refused 1.95 GiB to process [0-9]*; it freed 2.93 GiB, tried again and got it' err || fail "refused, then granted: $(cat err)"
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
        "$MEMFIT" run -q -- ./static || fail "a static program without a limit: exit $?"
    fi
    su=$(command -v su) && [ -u "$su" ] && [ "$(id -u)" != 0 ] && expect 2 "rights" "a setuid program" "$MEMFIT" run --memory 4GiB -- su
    expect 127 "no such command" "a limit and a missing command" "$MEMFIT" run --memory 4GiB -- no-such-command-here
    [ ! -e ran ] || fail "bad use of a limit did something"
fi
exit $((failures > 0))
