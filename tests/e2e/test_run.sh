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
expect 2 "is not a name" "a share of no name" "$MEMFIT" run --share ../mine -- touch ran
expect 2 "nothing without --memory" "--set without a size" "$MEMFIT" run --set mine
expect 2 "it runs none" "--set and a command" "$MEMFIT" run --set mine --memory 8GiB -- touch ran
expect 2 "nothing without --share" "turns without a share" "$MEMFIT" run --turns 5 --memory 8GiB -- touch ran
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

# ---- bytes where JAX means a part of the card: named ----
XLA_PYTHON_CLIENT_MEM_FRACTION=858993459.2 "$MEMFIT" run -q -- true 2>err || fail "a slip: exit $?"
grep -q 'XLA_PYTHON_CLIENT_MEM_FRACTION=858993459.2 is no part of a card' err || fail "a slip is not named: $(cat err)"
XLA_PYTHON_CLIENT_MEM_FRACTION=.8 "$MEMFIT" run -q -- true 2>err; [ ! -s err ] || fail "no slip: $(cat err)"

# ---- a limit of the host's memory: by a cgroup where one can be made, else refused with the reason ----
"$MEMFIT" run --host-memory 200MiB --report report -- python3 -c 'x = bytearray(100 << 20)' 2>err; code=$?
if [ $code = 0 ]; then
    holds report "j['host_limit_bytes'] == 200 << 20 and j['cause'] is None" && grep -q 'of 200.00 MiB of host memory' err || fail "--host-memory: $(cat report err)"
    "$MEMFIT" run --host-memory 100MiB --report report -- sh -c 'python3 -c "x = bytearray(400 << 20)"' 2>err; [ $? = 137 ] || fail "--host-memory, too much: $(cat err)"
    is report cause oom-killer
    grep -q 'peak 100.00 MiB of 100.00 MiB of host memory' err || fail "--host-memory, killed: the peak is not what was full: $(cat err)"
    grep -q "out-of-memory killer ended it: the cgroup's memory was used up, limit 100.00 MiB" err || fail "--host-memory, too much: $(cat err)"
else
    [ $code = 2 ] && grep -q 'group' err || fail "--host-memory where none can be made: exit $code $(cat err)"
fi
expect 2 "percentage" "--host-memory above the machine" "$MEMFIT" run --host-memory 150% -- touch ran
[ ! -e ran ] || fail "--host-memory: bad use did something"

# ---- a card, by the fake NVML: the program's processes have other numbers here, as in a container ----
if [ -n "${FAKE_NVML_LIBRARY:-}" ]; then
    export MEMFIT_LIB_NVML="$FAKE_NVML_LIBRARY"
    FAKE_NVML_PROCESSES=0:999999990:1000 FAKE_NVML_LATE=0:999999991:2500 "$MEMFIT" run --report report -- sleep 1 2>err || fail "with a card: exit $?"
    holds report "j['peak_bytes'] == 2500 << 20 and j['cards'][0]['others_bytes'] == 1000 << 20 and j['cards'][0]['by_arrival']" || fail "a card: $(cat report)"
    grep -q 'peak 2.44 GiB of 8.00 GiB on card 0, 1000.00 MiB more held by other processes; the batch could be about 3 times as large' err ||
        fail "a card: the closing line is $(cat err)"
    FAKE_NVML_PROCESSES=0:999999990:1000 "$MEMFIT" run --report report -- sleep 1 2>err || fail "with a card: exit $?"
    holds report "j['cards'][0]['peak_bytes'] == 0 and j['peak_bytes'] == j['host_peak_bytes']" || fail "another's bytes are taken for the program's"
    # Once a process of the program is listed by its number, one that ends elsewhere (and has no folder in /proc any more) is not the program's.
    for turn in 'echo 0:$$:500 >nvml; sleep 0.7; echo 0:999999992:2500 >nvml' 'echo 0:999999992:2500 >nvml; sleep 0.7; echo 0:$$:500 >nvml'; do
        rm -f nvml
        FAKE_NVML_FILE=nvml "$MEMFIT" run --report report -- sh -c "$turn; sleep 0.7" 2>err || fail "two on a card: exit $?"
        holds report "j['peak_bytes'] == 500 << 20 and not j['cards'][0]['by_arrival']" || fail "another's bytes, while it ended, are taken for the program's: $(cat report)"
    done
    # One card of several, as nvidia-smi counts; one that is not there is refused.
    seen=$(FAKE_NVML_CARDS=2 "$MEMFIT" run --quiet --device 1 -- sh -c 'echo $CUDA_DEVICE_ORDER:$CUDA_VISIBLE_DEVICES' 2>err)
    [ "$seen" = PCI_BUS_ID:1 ] || fail "--device 1: the program sees $seen, $(cat err)"
    FAKE_NVML_CARDS=2 "$MEMFIT" run --device 2 -- true 2>err; [ $? = 2 ] && grep -q 'this machine has 2 cards, counted from 0' err || fail "--device 2: $(cat err)"
    MEMFIT_LIB_NVML=/nonexistent "$MEMFIT" run --device 0 -- true 2>err; [ $? = 2 ] && grep -q -e '--device 0: ' err || fail "--device without a driver: $(cat err)"
    FAKE_NVML_INIT=18 "$MEMFIT" run -- sleep 0.3 2>err || fail "with a driver that refuses: exit $?"
    grep -q 'of host memory' err || fail "with a driver that refuses: no closing line"
fi

exit $((failures > 0))
