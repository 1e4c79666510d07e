#!/bin/sh
# An epoch on a card makes the host wait once, for its results, and a validation once more, whatever its number of steps: counted
# in the driver's calls (tests/gpu/count_waits.c) over the fake driver whose kernels do nothing. Skips without NVRTC.
set -u
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/../.." || exit 1
[ -f "${COUNT_WAITS_LIBRARY:-}" ] && [ -f "${FAKE_KERNELS_LIBRARY:-}" ] || fail "COUNT_WAITS_LIBRARY and FAKE_KERNELS_LIBRARY are not set"
export MEMFIT_LIB_CUDA="$FAKE_KERNELS_LIBRARY" MEMFIT_LIB_NVML=/nonexistent/nvml MEMFIT_LIB_CUDNN=/nonexistent/cudnn MEMFIT_LIB_CUBLASLT=/nonexistent/lt MEMFIT_CACHE="$dir/cubin"

count() { # count INTO EPOCHS OPTION...
    into=$1 epochs=$2; shift 2
    LD_PRELOAD="$COUNT_WAITS_LIBRARY" WAITS_INTO="$into" "$MEMFIT" train tests/fixtures/train/mlp.keras --data synthetic:1280 -b 32 --epochs "$epochs" "$@" --device cuda --quiet >"$dir/out" 2>&1
}
if ! count "$dir/first" 1; then
    grep -q -i nvrtc "$dir/out" && { echo "skipped: $(head -1 "$dir/out")"; exit 77; }
    fail "training on the fake driver: $(cat "$dir/out")"
    exit 1
fi

waits() { # waits WANTED OPTION...: of an epoch, by two runs that differ in one
    want=$1; shift
    count "$dir/2" 2 "$@" && count "$dir/3" 3 "$@" || fail "training with $*: $(cat "$dir/out")"
    for name in cuStreamSynchronize cuEventSynchronize cuCtxSynchronize cuMemcpy cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyDtoD_v2 cuMemFree_v2 "unpinned copies in" "unpinned copies out"; do
        added=$(($(sed "s/.*\"$name\": \([0-9]*\).*/\1/" "$dir/3") - $(sed "s/.*\"$name\": \([0-9]*\).*/\1/" "$dir/2")))
        [ "$name" = cuStreamSynchronize ] && wanted=$want || wanted=0
        [ "$added" = "$wanted" ] || fail "an epoch with \"$*\" calls $name $added times, wanted $wanted"
    done
}
waits 1
waits 2 --validation-split 0.2
waits 1 --gradient-accumulation 4
waits 1 --offload optimizer
exit $((failures > 0))
