#!/bin/sh
# memfit explain, doctor and ps: exit statuses, what they say of bad input, JSON keys, texts exactly as the docs show them.
set -u
logs=$MEMFIT_SOURCE/tests/fixtures/oom-logs
golden=$MEMFIT_SOURCE/tests/golden
. "$(dirname "$0")/lib.sh"

# ---- explain ----
log=$logs/torch-too-large.log
: >"$dir/empty"
mkdir "$dir/folder"
head -c 5000 "$MEMFIT" >"$dir/binary"
expect 2 "did you mean --model" "an unknown option" "$MEMFIT" explain --modle x "$log"
expect 2 "" "no operand" "$MEMFIT" explain
expect 5 "No such file" "a missing file" "$MEMFIT" explain "$dir/missing"
expect 5 "directory" "a directory" "$MEMFIT" explain "$dir/folder"
expect 5 "not text" "a binary file" "$MEMFIT" explain "$dir/binary"
expect 5 "empty" "an empty file" "$MEMFIT" explain "$dir/empty"
"$MEMFIT" explain - <"$dir/empty" >/dev/null 2>&1; [ $? = 5 ] || fail "empty standard input: exit $?"
"$MEMFIT" explain --json "$log" >"$dir/json" || fail "a log: exit $?"
for k in framework cause request_bytes limit_bytes in_use_bytes certainty; do
    [ -n "$(key $k "$dir/json")" ] || fail "explain: no key $k"
done
holds "$dir/json" "isinstance(j['owners'], list) and isinstance(j['suggestions'], list)" || fail "explain: no owners or suggestions"
is "$dir/json" cause too-large
"$MEMFIT" explain --json - <"$log" | cmp -s - "$dir/json" || fail "standard input reads otherwise than the file"
mkfifo "$dir/pipe" || fail "no pipe"
cat "$log" >"$dir/pipe" &
"$MEMFIT" explain --json "$dir/pipe" | cmp -s - "$dir/json" || fail "a pipe reads otherwise than the file"
cat "$logs/torch-fragmentation-0.pickle" >"$dir/pipe" &
"$MEMFIT" explain --json "$dir/pipe" >"$dir/snapshot" || fail "a snapshot through a pipe: exit $?"
is "$dir/snapshot" source snapshot
expect 5 "empty" "a device without text" "$MEMFIT" explain /dev/null
expect 5 "larger than 256 MiB" "a device without end" "$MEMFIT" explain /dev/zero
"$MEMFIT" explain - <"$dir" >/dev/null 2>"$dir/err"; [ $? = 1 ] || fail "a folder as standard input: exit $?"
"$MEMFIT" explain --json "$logs/torch-fragmentation-0.pickle" >"$dir/snapshot" || fail "a snapshot: exit $?"
is "$dir/snapshot" source snapshot
is "$dir/snapshot" cause fragmentation
expect 5 "GLOBAL" "a pickle that is a program" "$MEMFIT" explain "$MEMFIT_SOURCE/tests/fixtures/traces/object.pickle"
printf 'all is well\n' >"$dir/well"
"$MEMFIT" explain --json "$dir/well" >"$dir/json" || fail "a log without failure: exit $?"
is "$dir/json" cause unknown
# A hundred megabytes before the failure; 48 MiB of memory of its own are plenty.
{ yes 'step 17 loss 0.3141 lr 0.001 and some more words that a program prints while it is training' | head -c 100000000
  printf '\n'; cat "$log"; } >"$dir/huge"
( ulimit -d 49152 2>/dev/null; "$MEMFIT" explain --json "$dir/huge" ) >"$dir/json" 2>"$dir/err" || fail "a huge log: exit $?, $(cat "$dir/err")"
is "$dir/json" cause too-large
rm "$dir/huge"

# --model: what the step needed and what would fit.
model=$MEMFIT_SOURCE/tests/fixtures/keras/attention.keras
"$MEMFIT" explain --json --model "$model" -b 64 "$log" >"$dir/json" || fail "--model: exit $?"
holds "$dir/json" "j['plan']['batch'] == 64 and j['plan']['as_asked_fits']" || fail "--model: no plan"
# A real log and the model that made it: the batch is the log's, and the step would have fitted the machine.
"$MEMFIT" explain --json --model "$logs/tf-cpu-mended-fit.keras" "$logs/tf-cpu-mended-fit.log" >"$dir/json" || fail "a log and its model: exit $?"
is "$dir/json" cause limit
is "$dir/json" plan.batch 8192
# The same model against a limit it does not fit: what would.
"$MEMFIT" explain --json --model "$logs/tf-cpu-mended-fit.keras" -b 8192 "$logs/torch-mended-split.log" >"$dir/json" || fail "a limit and a model: exit $?"
holds "$dir/json" "not j['plan']['as_asked_fits'] and j['plan']['fits'] and j['plan']['pieces'] > 1 and j['plan']['max_batch'] > 1000" || fail "a limit and a model: $(cat "$dir/json" | tail -16)"
"$MEMFIT" explain --model "$logs/tf-cpu-mended-fit.keras" -b 8192 "$logs/torch-mended-split.log" >"$dir/text"
grep -q 'takes about .* in torch (.*) *; the limit was 6.00 GiB: it does not fit' "$dir/text" || fail "--model: not the framework's figure"
holds "$dir/json" "j['plan']['runtime'] == 'torch' and j['plan']['in_framework']['fits'] == 'no' and j['plan']['in_framework']['max_batch'] < j['plan']['max_batch']" || fail "--model: no figure of the framework"
grep -q 'what would fit' "$dir/text" && grep -q 'memfit train .* --batch-size 8192 --memory 6144MiB' "$dir/text" || fail "--model: no way that fits"
[ "$(wc -l <"$dir/text")" -le 40 ] || fail "--model: more than a screen"
for l in "$logs"/*.log; do
    [ "$("$MEMFIT" explain "$l" | wc -l)" -le 36 ] || fail "$l: more than a screen"
done
expect 5 "No such file" "a missing model" "$MEMFIT" explain --model "$dir/none.keras" "$log"

# ---- texts: each is what the program prints now, and what the docs show ----
shown() { # shown NAME DOC FILE: FILE is tests/golden/NAME and the block of docs/DOC marked with its name
    if [ -n "${MEMFIT_UPDATE_GOLDEN:-}" ]; then cp "$3" "$golden/$1"; fi
    cmp -s "$golden/$1" "$3" || { fail "$1: the text has changed"; diff "$golden/$1" "$3" | head -10; }
    awk -v name="$1" 'in_block && /^```$/ { exit } in_block { print } index($0, "<!-- golden: " name " -->") { marked = 1; next }
                      marked && /^```/ { in_block = 1; marked = 0 }' "$MEMFIT_SOURCE/docs/$2" >"$dir/block"
    cmp -s "$golden/$1" "$dir/block" || { fail "docs/$2 does not show $1 as it is"; diff "$golden/$1" "$dir/block" | head -5; }
}
for l in torch-other-process torch-growing-graph jax-limit-default; do
    "$MEMFIT" explain "$logs/$l.log" >"$dir/text"
    shown "explain-$l.txt" explain.md "$dir/text"
done
"$MEMFIT" explain "$logs/torch-fragmentation-0.pickle" >"$dir/text"
shown explain-snapshot.txt explain.md "$dir/text"

# ---- doctor and ps: two made-up machines and the fake NVML ----
expect 2 "unknown option" "doctor: an unknown option" "$MEMFIT" doctor --svae x
expect 2 "" "doctor: an operand" "$MEMFIT" doctor something
expect 5 "" "doctor: a missing record" "$MEMFIT" doctor --compare "$dir/missing"
expect 5 "" "doctor: a record that is none" "$MEMFIT" doctor --compare "$log"
expect 2 "unknown option" "ps: an unknown option" "$MEMFIT" ps --wacth
"$MEMFIT" doctor --json >"$dir/json" || fail "doctor on this machine: exit $?"
for k in verdict state; do [ -n "$(key $k "$dir/json")" ] || fail "doctor: no key $k"; done
for k in checks gpus processes; do holds "$dir/json" "isinstance(j['$k'], list)" || fail "doctor: no key $k"; done
if [ -z "${FAKE_NVML_LIBRARY:-}" ]; then exit $((failures > 0)); fi

machine() { # machine FOLDER DRIVER LIBCUDA TORCH CUDA KIB
    mkdir -p "$1/etc" "$1/proc/driver/nvidia" "$1/proc/sys/kernel" "$1/usr/lib/x86_64-linux-gnu"
    site=$1/venv/lib/python3.11/site-packages
    mkdir -p "$site/torch-$4.dist-info" "$site/torch" "$site/nvidia/cudnn/lib" "$site/nvidia_cudnn_cu12-9.10.2.21.dist-info"
    : >"$site/nvidia/cudnn/lib/libcudnn.so.9"
    printf "cuda: Optional[str] = '%s'\n" "$5" >"$site/torch/version.py"
    printf 'PRETTY_NAME="Ubuntu 24.04.2 LTS"\n' >"$1/etc/os-release"
    printf '6.8.0-60-generic\n' >"$1/proc/sys/kernel/osrelease"
    printf 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Tue Apr  1 00:00:00 UTC 2026\n' "$2" >"$1/proc/driver/nvidia/version"
    printf 'MemTotal: %s kB\nMemAvailable: %s kB\n' "$6" "$6" >"$1/proc/meminfo"
    : >"$1/usr/lib/x86_64-linux-gnu/libcuda.so.$3"
    ln -s "libcuda.so.$3" "$1/usr/lib/x86_64-linux-gnu/libcuda.so.1"
}
on() { # on FOLDER SETTINGS... COMMAND...
    folder=$1; shift
    env -i PATH=/usr/bin:/bin VIRTUAL_ENV=/venv MEMFIT_DOCTOR_ROOT="$folder" MEMFIT_LIB_NVML="$FAKE_NVML_LIBRARY" "$@"
}
machine "$dir/old" 580.159.04 580.159.04 2.8.0+cu126 12.6 66060288
machine "$dir/new" 550.54.14 550.54.14 2.11.0 13.0 16515072
cd "$dir" || exit 1
on old FAKE_NVML_CARDS=2 FAKE_NVML_CAPABILITY=90 "$MEMFIT" doctor --save old.json >old.txt 2>&1 || fail "doctor --save: exit $?"
on new FAKE_NVML_CAPABILITY=75 FAKE_NVML_PROCESSES=0:999999991:5000 TF_FORCE_GPU_ALOW_GROWTH=true "$MEMFIT" doctor >new.txt || fail "doctor: exit $?"
shown doctor-driver-too-old.txt doctor.md new.txt
on new FAKE_NVML_CAPABILITY=75 FAKE_NVML_PROCESSES=0:999999991:5000 TF_FORCE_GPU_ALOW_GROWTH=true "$MEMFIT" doctor --quiet >quiet.txt; head -n 1 new.txt | cmp -s - quiet.txt || fail "doctor --quiet is not the verdict alone: $(cat quiet.txt)"
on new FAKE_NVML_CAPABILITY=75 FAKE_NVML_PROCESSES=0:999999991:5000 "$MEMFIT" doctor --compare old.json | sed -n '/^compared/,$p' >compared.txt
shown doctor-compared.txt doctor.md compared.txt
on old FAKE_NVML_CARDS=2 "$MEMFIT" doctor --compare old.json | grep -q '0 differences' || fail "a machine differs from itself"
on old FAKE_NVML_INIT=18 "$MEMFIT" doctor | grep -q 'reboot' || fail "doctor: version mismatch without its cure"

# ---- doctor --card-file: what a card says of itself, and nothing that names the card or the machine ----
on old MEMFIT_LIB_CUDA="$dir/nothing.so" "$MEMFIT" doctor --card-file card.json --save both.json >out 2>&1; [ $? != 0 ] || fail "doctor --card-file without a driver: exit 0"
[ ! -e card.json ] && [ ! -e both.json ] || fail "doctor --card-file without a driver: wrote a file"
on old MEMFIT_LIB_CUDA="$FAKE_CUDA_LIBRARY" FAKE_CUDA_DEVICES=0 "$MEMFIT" doctor --card-file card.json >out 2>&1; [ $? != 0 ] && [ ! -e card.json ] || fail "doctor --card-file without a card"
uuid=GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0
on old MEMFIT_LIB_CUDA="$FAKE_CUDA_LIBRARY" FAKE_CUDA_DEVICES=2 FAKE_NVML_UUID=$uuid "$MEMFIT" doctor --card-file card.json --json >json || fail "doctor --card-file: exit $?"
holds json "j['verdict']" || fail "doctor --card-file --json: not doctor's object"
holds card.json "j['format'] == 'memfit cards' and j['version'] == 1 and [c['name'] for c in j['cards']] == ['Fake Card 0', 'Fake Card 1']" &&
    holds card.json "j['cards'][0]['memory_bytes'] == 8 << 30 and j['cards'][0]['reserved_bytes'] == 615 << 20 and j['cards'][0]['bandwidth_gbs'] == 4814.304" &&
    holds card.json "j['cards'][1]['memory_bytes'] == 1 << 30 and j['cards'][1]['reserved_bytes'] is None and j['cards'][1]['context_bytes'] == 64 << 20" &&
    holds card.json "all(c['multiprocessors'] == 132 and c['memory_bus_bits'] == 6016 and c['capability'] == 90 and c['in_table'] is None for c in j['cards'])" ||
    fail "doctor --card-file: $(cat card.json)"
! grep -qi -e a0a0a0a0 -e "$(uname -n)" card.json || fail "doctor --card-file: names the card or the machine"
on old MEMFIT_LIB_CUDA="$FAKE_CUDA_LIBRARY" FAKE_CUDA_CONTEXT=4294967296 "$MEMFIT" doctor --card-file card.json >out 2>&1 || fail "doctor --card-file, a card that cannot be opened: exit $?"
holds card.json "j['cards'][0]['context_bytes'] is None and 'context' in j['cards'][0]['not_opened']" || fail "doctor --card-file, a card that cannot be opened: $(cat card.json)"
on old MEMFIT_LIB_CUDA="$FAKE_CUDA_LIBRARY" "$MEMFIT" doctor --card-file old.json >out 2>&1; [ $? = 2 ] && grep -q 'a record of memfit doctor' out || fail "doctor --card-file over a record: $(cat out)"

on old FAKE_NVML_CARDS=2 FAKE_NVML_PROCESSES=0:999999991:5000,0:999999992:120:g,1:999999993:na "$MEMFIT" ps >ps.txt || fail "ps: exit $?"
shown ps.txt ps.md ps.txt
for version in 1 2 3; do
    on old FAKE_NVML_VERSION=$version FAKE_NVML_PROCESSES=0:999999991:5000,0:999999992:120 "$MEMFIT" ps --json >json || fail "ps --json: exit $?"
    holds json "j['gpus'][0]['processes_bytes'] == 5120 << 20 and j['gpus'][0]['used_bytes'] == j['gpus'][0]['processes_bytes'] + j['gpus'][0]['unaccounted_bytes']" &&
        holds json "j['gpus'][0]['unaccounted_bytes'] == j['gpus'][0]['driver_bytes'] + j['gpus'][0]['unexplained_bytes']" || fail "ps: the sums are not right: $(cat json)"
done
on old FAKE_NVML_INIT=18 "$MEMFIT" ps >out 2>&1; [ $? = 1 ] || fail "ps with a mismatched driver: exit $?"
grep -q 'reboot' out || fail "ps: version mismatch without its cure"
env -i PATH=/usr/bin:/bin MEMFIT_LIB_NVML="$dir/nothing.so" "$MEMFIT" ps >out 2>&1; [ $? != 0 ] || fail "ps without a driver: exit 0"
exit $((failures > 0))
