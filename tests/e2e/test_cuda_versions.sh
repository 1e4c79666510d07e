#!/bin/sh
# A checkpoint that goes on with another cuDNN says `reordered`, with another copy of the same version it does not and gives the
# same bytes: over the fake driver whose kernels do nothing, with copies of a cuDNN that has a version and nothing else
# (tests/fakes/fake_cudnn.c). Which copy runs is what was asked for, whatever else the loader would find. Skips without NVRTC.
set -u
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/../.." || exit 1
# What stands for cuBLASLt can be opened and has none of its functions.
[ -f "${FAKE_CUDNN_LIBRARY:-}" ] && [ -f "${FAKE_CUDNN_PART:-}" ] && [ -f "${FAKE_KERNELS_LIBRARY:-}" ] || fail "FAKE_CUDNN_LIBRARY, FAKE_CUDNN_PART and FAKE_KERNELS_LIBRARY are not set"
export MEMFIT_LIB_CUDA="$FAKE_KERNELS_LIBRARY" MEMFIT_LIB_NVML=/nonexistent/nvml MEMFIT_LIB_CUBLASLT="$FAKE_KERNELS_LIBRARY" MEMFIT_CACHE="$dir/cubin"
for copy in new:91900 old:91400 again:91900; do
    into=$dir/${copy%:*}
    mkdir "$into"
    cp "$FAKE_CUDNN_LIBRARY" "$into/libcudnn.so.9"
    cp "$FAKE_CUDNN_PART" "$into/libcudnn_graph.so.9"
    echo "${copy#*:}" > "$into/version"
done
mkdir "$dir/alone" && cp "$FAKE_CUDNN_LIBRARY" "$dir/alone/libcudnn.so.9"

run() { # run STEPS OPTION...: what it says in out and err
    steps=$1; shift
    "$MEMFIT" train tests/fixtures/train/mlp.keras --data synthetic:64 -b 16 --epochs 10 --steps "$steps" --device cuda --json "$@" >"$dir/out" 2>"$dir/err"
}
if ! MEMFIT_LIB_CUDNN="$dir/new/libcudnn.so.9" run 4 --checkpoint "$dir/kept.keras" --save-freq 4; then
    grep -q -i nvrtc "$dir/err" && { echo "skipped: $(head -1 "$dir/err")"; exit 77; }
    fail "training on the fake driver: $(cat "$dir/err")"
    exit 1
fi
grep -q '"made_by": ".*, cuDNN 91900"' "$dir/out" || fail "the version that ran is not said: $(grep made_by "$dir/out")"
MEMFIT_LIB_CUDNN="$dir/new/libcudnn.so.9" run 8 --out "$dir/whole.keras" || fail "the whole run: $(cat "$dir/err")"

goes_on() { # goes_on NAME VERSION-or-none REORDERED-or-same [FROM]: from the checkpoint, under the environment as it is
    run 8 --resume "${4:-$dir/kept.keras}" --out "$dir/b.keras" || fail "$1: $(cat "$dir/err")"
    if [ "$2" = none ]; then
        grep -q cuDNN "$dir/out" && fail "$1: cuDNN was used: $(grep made_by "$dir/out")"
    else
        grep -q "\"made_by\": \".*, cuDNN $2\"" "$dir/out" || fail "$1: another version ran: $(grep made_by "$dir/out")"
    fi
    if [ "$3" = reordered ]; then
        grep -q 'different rounding (reordered)' "$dir/err" || fail "$1: does not say reordered"
    else
        grep -q reordered "$dir/err" && fail "$1: says reordered: $(cat "$dir/err")"
        cmp -s "$dir/b.keras" "$dir/whole.keras" || fail "$1: other bytes than the run that nobody disturbed"
    fi
}
export MEMFIT_LIB_CUDNN="$dir/new/libcudnn.so.9"
goes_on 'the same copy' 91900 same
LD_LIBRARY_PATH="$dir/old" goes_on 'the same copy, another in LD_LIBRARY_PATH' 91900 same
LD_PRELOAD="$dir/again/libcudnn_graph.so.9" goes_on 'with parts of a copy of the same version' 91900 same
LD_PRELOAD="$dir/old/libcudnn_graph.so.9" goes_on 'with parts of another version' none reordered
grep -q "own kernels do cuDNN's work, slower: parts of two copies of cuDNN are in this process: 91400 is used, and $dir/new has 91900" "$dir/err" || fail "two versions in one process are not named: $(cat "$dir/err")"
MEMFIT_LIB_CUDNN="$dir/again/libcudnn.so.9" goes_on 'another copy of the same version' 91900 same
MEMFIT_LIB_CUDNN="$dir/old/libcudnn.so.9" goes_on 'another version' 91400 reordered
LD_LIBRARY_PATH="$dir/new" MEMFIT_LIB_CUDNN="$dir/old/libcudnn.so.9" goes_on 'another version, the first in LD_LIBRARY_PATH' 91400 reordered
LD_LIBRARY_PATH="$dir/old" MEMFIT_LIB_CUDNN="$dir/alone/libcudnn.so.9" goes_on 'a shim whose parts are elsewhere' 91400 reordered
MEMFIT_LIB_CUDNN=/nonexistent/libcudnn.so.9 goes_on 'without' none reordered
unset MEMFIT_LIB_CUDNN
MEMFIT_CUDA_LIBDIR="$dir/old" goes_on 'another version by its folder' 91400 reordered
LD_LIBRARY_PATH="$dir/new" MEMFIT_CUDA_LIBDIR="$dir/again:$dir/old" goes_on 'the first of two folders' 91900 same

# A checkpoint that names another maker: one bit of what it recorded.
python3 - "$dir/kept.keras" "$dir/edited.keras" <<'P' || fail "the checkpoint cannot be edited"
import struct, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as a, zipfile.ZipFile(sys.argv[2], "w") as b:
    for i in a.infolist():
        data = bytearray(a.read(i))
        if i.filename == "memfit.state":
            version, words = struct.unpack_from("<QQ", data, 8)
            assert data[:8] == b"memfit01" and words >= 24
            data[24 + 8 * 23 + 5] ^= 1
        b.writestr(i, bytes(data))
P
export MEMFIT_LIB_CUDNN="$dir/new/libcudnn.so.9"
goes_on 'a checkpoint of another maker' 91900 reordered "$dir/edited.keras"
cmp -s "$dir/b.keras" "$dir/whole.keras" || fail "a checkpoint of another maker: other bytes than without the edit"
exit $((failures > 0))
