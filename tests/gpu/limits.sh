#!/bin/bash
# Growth and limits of the small network on a card, PyTorch and JAX, in their failing and their mended form: limits.sh BUILD [whole]. whole: the forms that take most of the card, alone. ONLY=jax: those with that in their name; AT_ONCE=1: all at once.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")"); out=${OUT_FOLDER:-$(mktemp -d)}; mkdir -p "$out"
export MEMFIT_PROGRAM="$build/memfit" PYTHONPATH="${PYTHONPATH:-$here/../../python}"; cd "$here" || exit 1
run="timeout -k 5 70 $build/memfit run -q"; p="python3 limits_program.py"
go() { # go NAME COMMAND...
    n=s-$1; shift; [[ $n == *$ONLY* ]] || return; if [ -n "$AT_ONCE" ]; then one "$@" & else one "$@"; fi
}
one() {
    "$@" >"$out/$n.out" 2>"$out/$n.err"; r=$?
    echo "$n: exit status $r; $(tail -n 1 "$out/$n.out"); $(grep -a "^memfit\|Error" "$out/$n.err" | tail -n 2 | cut -c1-200)"
}
slip=858993459.2 # 0.8 * 1024**3, where megabytes are meant
if [ "$2" = whole ]; then # each has the card to itself; all import at once
    gate=$out/gate; rm -f "$gate".*
    whole() { n=$1; shift; "$@" >"$out/s-$n.out" 2>"$out/s-$n.err" & }
    whole s2-jax-as-it-is timeout 50 $p jax s1 "$gate.1"
    whole s2-jax-growth $run --growth --report "$out/growth.json" -- $p jax s1 "$gate.2"
    whole s3-torch-own-80 timeout 50 $p torch fraction:0.8 "$gate.3"
    whole s3-torch-80 $run --memory 80% --report "$out/80.json" -- $p torch fill "$gate.4"
    whole s3-jax-own-80 timeout 50 $p jax fraction:0.8 "$gate.5"
    whole s3-jax-80 $run --memory 80% -- $p jax s1 "$gate.6"
    for k in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do [ "$(grep -al imported "$out"/s-s[23]-*.err | wc -l)" = 6 ] && break; sleep 1; done
    i=0
    for n in s2-jax-as-it-is s2-jax-growth s3-torch-own-80 s3-torch-80 s3-jax-own-80 s3-jax-80; do
        i=$((i + 1)); touch "$gate.$i"
        for k in $(seq 100); do [ -s "$out/s-$n.out" ] && break; sleep 0.1; done; sleep 1
        echo "s-$n: $(tail -n 1 "$out/s-$n.out"); $(grep -a "^memfit:\|Error" "$out/s-$n.err" | head -2 | cut -c1-160)"
    done
    wait; exit
fi
go s2-torch $run -- $p torch s1
go s2-torch-growth $run --growth -- $p torch s1
go s2-jax-takes-its-part $run --memory 8GiB -- $p jax s1
go s2-jax-growth $run --growth --memory 8GiB -- $p jax s1
go s3-torch-own-1 timeout 60 $p torch "fraction:(1<<30)/total"
go s3-torch-1 $run --memory 1GiB --report "$out/s3-torch-1.json" -- $p torch fill
go s3-torch-1-trains $run --memory 1GiB -- $p torch s1
go s3-jax-own-1 timeout 60 $p jax "fraction:(1<<30)/total"
go s3-jax-1 $run --memory 1GiB --report "$out/s3-jax-1.json" -- $p jax s1
go slip-torch-own timeout 60 $p torch fraction:$slip
go slip-jax-own-held $run --memory 8GiB -- $p jax fraction:$slip
go slip-memfit $run --memory $slip -- $p torch s1
go slip-memfit-unit $run --memory ${slip}MiB -- $p torch s1
go slip-limit python3 -c "import memfit; memfit.limit('${slip}MiB')"
go slip-limit-float python3 -c "import memfit; memfit.limit(0.8 * 1024**3)"
wait
