#!/bin/bash
# test_cache.sh: --cache: samples that were made once come from a file or from memory, to the same bits; the file is checked
# against its sources, mended where it is damaged, and never put in the place of something else.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures"
set="$dir/set" c="$dir/c.cache"
cp -r "$f/pictures" "$set"
m=("$f/pictures.keras" --batch-size 4 --threads 1)
if "$MEMFIT" predict "${m[@]}" --quiet --data "$set" 2>&1 | grep -q "built without"; then
    echo "skipped: built without libjpeg or libpng"; exit 77
fi
train() { "$MEMFIT" train "${m[@]}" --json "$@" >"$dir/out" 2>"$dir/err" || fail "train $*: exit $?: $(tail -2 "$dir/err")"; }
same() { cmp -s "$dir/a.keras" "$dir/b.keras" || fail "$1: another model"; }
said() { grep -q "$1" "$dir/err" || fail "\"$1\" is not said: $(cat "$dir/err")"; }
whole() { # what was planned is what was taken, and nothing in steps
    is "$dir/out" allocations_in_steps 0
    [ "$(key measured_peak_bytes "$dir/out")" -le "$(key planned_peak_bytes "$dir/out")" ] || fail "$1: more was taken than planned"
}
run=(--data "$set" --epochs 3 --seed 5 --validation-split 0.25)
train "${run[@]}" --out "$dir/a.keras"

# A file: made in the first epoch, used from then on, and by the next run.
train "${run[@]}" --out "$dir/b.keras" --cache "$c"; same "the first run with a cache"; whole "a cache in a file"
said "keeps samples once they are made"
[ "$(key cache_found "$dir/out")" -ge 44 ] || fail "the second and third epoch did not use the cache: $(key cache_found "$dir/out")"
train "${run[@]}" --out "$dir/b.keras" --cache "$c"; same "the second run with a cache"; said "taken from"
[ "$(key cache_found "$dir/out")" -ge 66 ] || fail "the second run did not use the cache: $(key cache_found "$dir/out")"
# Another seed mixes other samples into validation: the same file serves it.
train --data "$set" --epochs 1 --seed 6 --validation-split 0.25 --cache "$c"; said "taken from"

# Damage: what is not whole is made again. Zeros, noise, a cut: the same bits.
bytes=$(stat -c %s "$c")
for at in 64 6000 $((bytes / 2)); do
    head -c 900 /dev/urandom | dd of="$c" bs=1 seek=$at conv=notrunc status=none
    train "${run[@]}" --out "$dir/b.keras" --cache "$c"; same "damaged at $at"
done
truncate -s $((bytes / 3)) "$c"
train "${run[@]}" --out "$dir/b.keras" --cache "$c"; same "cut"
# A damaged head: made anew. Another way of making samples, other files, other times: made anew.
printf X | dd of="$c" bs=1 seek=20 conv=notrunc status=none
train "${run[@]}" --out "$dir/b.keras" --cache "$c"; same "a damaged head"; said "made anew"
train "${run[@]}" --out "$dir/b.keras" --cache "$c" --image-type uint8; said "made anew"
train "${run[@]}" --out "$dir/b.keras" --cache "$c"; same "back to float32"; said "made anew"
cp "$set/other/colours.bmp" "$set/other/grey.png" # the same name, another picture
train "${run[@]}" --out "$dir/a.keras"
train "${run[@]}" --out "$dir/b.keras" --cache "$c"; same "a file that changed"; said "made anew"
touch -d 2001-02-03 "$set/other/grey.png"
train "${run[@]}" --cache "$c"; said "made anew"
train "${run[@]}" --cache "$c"; said "taken from"

# Killed while it is written: what is whole is used, to the same bits.
rm "$c"
for i in 1 2 3 4; do timeout -s KILL 0.0$((i * 17 % 60 + 20)) "$MEMFIT" train "${m[@]}" "${run[@]}" --cache "$c" >/dev/null 2>&1; done 2>/dev/null
train "${run[@]}" --out "$dir/b.keras" --cache "$c"; same "killed while caching"
# A disk without room: told, and nothing else changes.
(ulimit -f 40; trap '' XFSZ; "$MEMFIT" train "${m[@]}" "${run[@]}" --cache "$dir/small.cache" --quiet >"$dir/out" 2>"$dir/err") || fail "a full disk: $(tail -1 "$dir/err")"
grep -q "could not be written to it" "$dir/out" || fail "a full disk is not told: $(cat "$dir/out")"

# Something else is never replaced; inputs neither.
echo precious >"$dir/mine"; cp "$f/pictures.npz" "$dir/x.npz"
expect 2 "mine" "a file of another kind" "$MEMFIT" train "${m[@]}" "${run[@]}" --cache "$dir/mine"
expect 2 "" "a file of another kind, forced" "$MEMFIT" train "${m[@]}" "${run[@]}" --cache "$dir/mine" --force
[ "$(cat "$dir/mine")" = precious ] || fail "a file was destroyed"
expect 2 "" "the data itself" "$MEMFIT" train "${m[@]}" --data "$dir/x.npz" --cache "$dir/x.npz"
cmp -s "$f/pictures.npz" "$dir/x.npz" || fail "the data was destroyed"

# In memory: what the limit leaves, part of what is planned; less of it where less is left, to the same bits.
for i in $(seq 20); do for p in jpeg other; do cp -r "$f/pictures/$p" "$set/$p/more$i"; done; done
run=(--data "$set" --epochs 3 --seed 5 --validation-split 0.25 --batch-size 16)
train "${run[@]}" --out "$dir/a.keras"
for limit in 512MiB 64MiB; do
    train "${run[@]}" --out "$dir/b.keras" --cache memory --memory $limit; same "in memory, $limit"; whole "in memory, $limit"
    [ "$(key cache_found "$dir/out")" -ge 900 ] || fail "in memory, $limit: $(key cache_found "$dir/out") found"
    [ "$(key cache_bytes "$dir/out")" -gt 2000000 ] || fail "in memory, $limit: $(key cache_bytes "$dir/out") bytes"
done
planned=$(key planned_peak_bytes "$dir/out") cached=$(key cache_bytes "$dir/out") all=$(key cache_found "$dir/out")
train "${run[@]}" --out "$dir/b.keras" --cache memory --memory $((planned - cached / 2)); same "half in memory"; whole "half in memory"
less=$(key cache_bytes "$dir/out")
[ "$less" -gt 0 ] && [ "$less" -lt "$cached" ] || fail "half in memory: $less of $cached bytes"
[ "$(key cache_found "$dir/out")" -lt "$all" ] || fail "half in memory: as many were found as with all of it"
train "${run[@]}" --out "$dir/b.keras" --cache off; same "off"
is "$dir/out" cache_found 0
# A limit that is lowered takes the cache back first, and the plan stays.
echo 512MiB >"$dir/limit"
"$MEMFIT" train "${m[@]}" "${run[@]}" --epochs 100000 --steps 100000 --cache memory --memory 512MiB --memory-file "$dir/limit" --json >"$dir/out" 2>"$dir/err" &
run_id=$!
for i in $(seq 100); do grep -q "have room in memory" "$dir/err" && break; sleep 0.1; done
echo $((planned - cached / 2)) >"$dir/limit.new"; mv "$dir/limit.new" "$dir/limit"
for i in $(seq 300); do [ "$(grep -c "have room in memory" "$dir/err")" -ge 2 ] && break; sleep 0.1; done
kill -INT $run_id; wait $run_id
[ "$(grep -c "have room in memory" "$dir/err")" = 2 ] || fail "the limit was lowered, the cache stayed: $(cat "$dir/err")"
grep -q "going on in" "$dir/err" && fail "the limit was lowered: another plan was made"

# Unpacked arrays: mapped from the cache the next time, to the same bits; damaged: unpacked again.
t=("$f/train/mlp.keras" --batch-size 16 --threads 1 --epochs 2)
learn() { "$MEMFIT" train "${t[@]}" "$@" --json >"$dir/out" 2>"$dir/err" || fail "train $*: exit $?: $(tail -1 "$dir/err")"; }
awk 'BEGIN { srand(3); for (i = 0; i < 300; i++) { for (j = 0; j < 64; j++) printf "%.6f,", rand(); print int(rand() * 10) } }' >"$dir/t.csv"
for data in "$f/train/digits_chunked.h5" "$dir/t.csv"; do
    rm -f "$dir/t.cache"
    learn --data "$data" --out "$dir/a.keras"
    learn --data "$data" --out "$dir/b.keras" --cache "$dir/t.cache"; same "$data: first"; said "as they were unpacked"
    learn --data "$data" --out "$dir/b.keras" --cache "$dir/t.cache"; same "$data: second"; said "are taken from"
    bytes=$(stat -c %s "$dir/t.cache")
    for at in 70 $((bytes - 100)); do
        printf 'XYZXYZXYZ' | dd of="$dir/t.cache" bs=1 seek=$at conv=notrunc status=none
        learn --data "$data" --out "$dir/b.keras" --cache "$dir/t.cache"; same "$data: damaged at $at"; said "damaged: made anew"
    done
    truncate -s $((bytes / 2)) "$dir/t.cache"
    learn --data "$data" --out "$dir/b.keras" --cache "$dir/t.cache"; same "$data: cut"; said "as they were unpacked"
done
sed -i '5s/.*/'"$(sed -n 6p "$dir/t.csv")"'/' "$dir/t.csv"
learn --data "$dir/t.csv" --cache "$dir/t.cache"; said "as they were unpacked"
# Files that are mapped as they are need none.
learn --data "$f/train/digits.npz" --cache "$dir/none.cache"; [ -e "$dir/none.cache" ] && fail "a cache of nothing"
[ "$failures" = 0 ] || exit 1
