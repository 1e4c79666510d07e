#!/bin/sh
# Nothing a user has is destroyed: an output is never an input of the run, by whatever name, and never a file of another kind
# unless --force says so. What is refused is refused with exit status 2 before anything is opened, and the bytes are as before.
set -u
. "$(dirname "$0")/lib.sh"
fixtures=$(cd "$(dirname "$0")/../fixtures" && pwd)
cd "$dir" || exit 1
model=$fixtures/train/mlp.keras data=$fixtures/train/digits.npz
fresh() { # the user's files, anew
    rm -rf ./* && mkdir mine
    cp "$model" mine/model.keras; cp "$data" mine/data.npz; cp "$data" mine/val.npz; cp "$model" mine/other.keras
    python3 - mine/x.npy "$data" <<'PY'
import sys, zipfile
archive = zipfile.ZipFile(sys.argv[2])
open(sys.argv[1], "wb").write(archive.read("x.npy"))
PY
    printf 'id,lower,upper,size\na,0,2,4\nb,1,3,4\n' >mine/table.csv
    printf '{"0": 1.0, "1": 2.0}\n' >mine/weights.json
    printf '300MiB\n' >mine/limit
    printf 'loss 1.0\nCUDA out of memory\n' >mine/notes.txt
    printf 'date,amount\n2024-01-01,5\n' >mine/accounts.csv
    printf '<!DOCTYPE html><html><head><title>home page</title></head></html>\n' >mine/index.html
    printf '{"a": 1}\n' >mine/some.json
    printf '# a list\n- one, arena two\n' >mine/list.md
    ln -s mine/data.npz link.npz; ln mine/data.npz hard.npz; ln -s mine/model.keras link.keras; ln mine/model.keras hard.keras
    (cd mine && sha256sum ./*) >sums
}
refused() { # refused TEXT ARGUMENTS...: exit 2, the text on standard error, all files as they were, no new one
    want=$1; shift
    ls -R >before
    "$MEMFIT" "$@" >out 2>err </dev/null; got=$?
    [ "$got" = 2 ] || fail "$*: exit $got, wanted 2: $(head -2 err)"
    grep -q -e "$want" err || fail "$*: \"$want\" is not in: $(cat err)"
    (cd mine && sha256sum --quiet -c ../sums) || { fail "$*: a file of the user was changed"; fresh; }
    touch out err; ls -R >after
    [ "$(sed '/^\(out\|err\|before\|after\)$/d' before)" = "$(sed '/^\(out\|err\|before\|after\)$/d' after)" ] ||
        { fail "$*: files came or went: $(diff before after | head -3)"; fresh; }
}
done_with() { "$MEMFIT" "$@" >out 2>err </dev/null || fail "$*: exit $?: $(head -2 err)"; } # what must go on working
fresh

# An output that a pattern of the data matches is an input; --force does not help. The model among the matches is what makes it one.
refused "matches it" train mine/model.keras --data 'mine/*.keras' --out mine/other.keras
refused "matches it" train mine/model.keras --data 'mine/{data,other}.*' --out mine/other.keras --force
refused "matches it" train mine/model.keras --data mine/data.npz --validation-data 'mine/o?her.keras' --checkpoint mine/other.keras
refused "matches it" train mine/model.keras --data 'mine/[o]ther*' --log-csv mine/other.keras --force
train="train mine/model.keras --data mine/data.npz --steps 1"

# ---- "-" is no output ----
for option in --out --checkpoint --trace --log-csv --html --dump-graph --tensorboard --cache; do
    refused "$option -: it writes a file" $train $option -
    refused "belongs to the answer" $train $option=- --force
done
for option in --save --html --dump-graph; do refused "$option -: it writes a file" plan mine/model.keras $option -; done
for command in evaluate predict; do refused "--out -: it" $command mine/model.keras --data mine/data.npz --out -; done
for option in --html --perfetto --memory-viz --tensorboard --flame; do refused "$option -: it" report mine/notes.txt $option -; done
for option in --report --trace; do refused "belongs to the program" run $option - -- touch mine/ran; done
for option in --save --card-file; do refused "$option -: it" doctor $option -; done
refused "--out -: it" pack mine/table.csv --out -
done_with $train --log-csv ./-
rm ./-

# ---- an output is an input of the run ----
for option in --out --checkpoint --trace --log-csv --html --dump-graph; do
    for file in mine/data.npz ./mine/../mine/data.npz "$dir/mine/data.npz" link.npz hard.npz; do
        refused "would replace an input of this run: --data" $train $option $file
        refused "would replace an input of this run: --data" $train $option=$file --force
    done
    for file in mine/model.keras link.keras hard.keras; do
        refused "would replace an input of this run: MODEL" $train $option $file --force
    done
    refused "an input of this run: --validation-data" $train --validation-data mine/val.npz $option mine/val.npz --force
    refused "an input of this run: --class-weight" $train --class-weight mine/weights.json $option mine/weights.json --force
    refused "an input of this run: --memory-file" $train --memory-file mine/limit $option mine/limit --force
done
for option in --out --trace --log-csv; do
    refused "an input of this run: --resume" $train --resume mine/other.keras $option mine/other.keras --force
done
refused "an input of this run: MODEL" plan mine/model.keras --html mine/model.keras --force
refused "an input of this run: MODEL" plan mine/model.keras --dump-graph mine/model.keras --force
refused "an input of this run: MODEL" plan mine/model.keras --dump-graph link.keras
refused "an input of this run: --data" predict mine/model.keras --data mine/x.npy --out mine/x.npy
refused "an input of this run: --data" predict mine/model.keras --data mine/x.npy --out mine/x.npy --force
refused "an input of this run: MODEL" evaluate mine/model.keras --data mine/data.npz --out mine/model.keras --force
refused "an input of this run: FILE.csv" pack mine/table.csv --out mine/table.csv --force
"$MEMFIT" doctor --save record.json >out 2>err; cp record.json mine; (cd mine && sha256sum ./*) >sums
refused "an input of this run: --compare" doctor --compare mine/record.json --save mine/record.json --force

# ---- two outputs are one file, also one that is not there yet ----
refused "are one file" $train --out same.keras --checkpoint same.keras
refused "are one file" $train --out same.keras --checkpoint ./mine/../same.keras --force
refused "are one file" $train --trace same --log-csv same
ln -s nowhere.keras dangling.keras
refused "are one file" $train --out nowhere.keras --checkpoint dangling.keras
rm dangling.keras

# ---- a file of another kind ----
for file in mine/data.npz mine/x.npy mine/notes.txt mine/accounts.csv mine/some.json; do
    refused "another kind" train mine/model.keras --data synthetic:8 --out $file
    refused "another kind" train mine/model.keras --data synthetic:8 --checkpoint $file
    refused "another kind" train mine/model.keras --data synthetic:8 --trace $file
    refused "another kind" train mine/model.keras --data synthetic:8 --log-csv $file
    refused "another kind" train mine/model.keras --data synthetic:8 --html $file
    refused "another kind" train mine/model.keras --data synthetic:8 --dump-graph $file
    refused "must be a folder" train mine/model.keras --data synthetic:8 --tensorboard $file
    refused "another kind" plan mine/model.keras --html $file
    refused "another kind" plan mine/model.keras --dump-graph $file
    refused "another kind" doctor --save $file
    refused "another kind" pack mine/table.csv --out $file
    [ $file = mine/x.npy ] || refused "another kind" predict mine/model.keras --data synthetic:8 --out $file
done
for file in mine/model.keras mine/list.md mine/index.html; do
    refused "another kind" doctor --save $file
    refused "another kind" plan mine/other.keras --html $file
    refused "another kind" plan mine/other.keras --dump-graph $file
    refused "another kind" predict mine/other.keras --data synthetic:8 --out $file
    refused "another kind" train mine/other.keras --data synthetic:8 --log-csv $file
done
refused "it is a Keras model, not a page" plan mine/other.keras --html mine/model.keras
refused "it is a zip archive, as .npz files are" $train --out mine/val.npz
refused "is a folder" $train --out mine
refused "the name of a file is empty" $train --out ""

# ---- and with --force it is replaced; of the same kind, empty or a device without it ----
cp mine/notes.txt n1.keras; cp mine/notes.txt n2; cp mine/notes.txt n3; cp mine/notes.txt n4; cp mine/notes.txt n5; cp mine/notes.txt n6
for again in --force ""; do
    done_with $train $again --out n1.keras --checkpoint n2 --trace n3 --log-csv n4 --html n5 --dump-graph n6 --tensorboard board
    for f in n1.keras n2 n3 n4 n5 n6; do cmp -s $f mine/notes.txt && fail "$f was not replaced"; done
done
done_with $train --dump-graph n7.dot; done_with plan mine/model.keras --dump-graph n7.dot
done_with plan mine/model.keras --html n5
done_with doctor --save n8; done_with doctor --save n8
done_with pack mine/table.csv --out n9; done_with pack mine/table.csv --out n9
done_with predict mine/model.keras --data mine/data.npz --out n10; done_with evaluate mine/model.keras --data mine/data.npz --out n10
: >empty.keras; : >empty
done_with $train --out empty.keras --log-csv empty
done_with $train --out /dev/null --trace /dev/null --log-csv /dev/null
# The way a job that may be stopped is written: the checkpoint is what it goes on from.
done_with $train --checkpoint ck.keras; done_with $train --checkpoint ck.keras --resume ck.keras --epochs 2

# ---- outputs whose names only the model tells ----
cat >two.json <<'JSON'
{"class_name": "Functional", "config": {"name": "two", "layers": [
 {"class_name": "InputLayer", "name": "x", "config": {"name": "x", "batch_shape": [null, 3], "dtype": "float32"}, "inbound_nodes": []},
 {"class_name": "Dense", "name": "p", "config": {"name": "p", "trainable": true, "dtype": "float32", "units": 1}, "inbound_nodes": [[["x", 0, 0, {}]]]},
 {"class_name": "Dense", "name": "q", "config": {"name": "q", "trainable": true, "dtype": "float32", "units": 1}, "inbound_nodes": [[["x", 0, 0, {}]]]}],
 "input_layers": [["x", 0, 0]], "output_layers": [["p", 0, 0], ["q", 0, 0]]}}
JSON
cp mine/notes.txt y.q.npy
"$MEMFIT" predict two.json --data synthetic:8 --out y.npy >out 2>err; [ $? = 2 ] || fail "predict over y.q.npy: exit $?"
cmp -s y.q.npy mine/notes.txt || fail "predict replaced y.q.npy"
[ -e y.npy ] && fail "predict that was refused left y.npy"

# ---- a file in a folder that is an input ----
mkdir images && cp mine/x.npy images/x.npy && cp mine/x.npy images/kept
"$MEMFIT" predict mine/model.keras --data images --out images/x.npy >out 2>err; [ $? = 2 ] || fail "predict into its data: exit $?"
cmp -s images/x.npy images/kept || fail "predict replaced a file of its data"

# ---- a link whose target is missing is followed, as the shell does; the link stays ----
rm -rf made && mkdir made
ln -s made/new.keras dangling.keras; ln -s made/new.csv dangling.csv; ln -s made/new.trace dangling.trace
ln -s made/new.html dangling.html; ln -s no/folder/x.keras lost.keras; ln -s round.keras round.keras
done_with $train --out dangling.keras --log-csv dangling.csv --trace dangling.trace --html dangling.html
for ending in keras csv trace html; do
    [ -L dangling.$ending ] && [ -s made/new.$ending ] || fail "a link to a missing .$ending was not followed"
done
for link in lost.keras round.keras; do
    "$MEMFIT" $train --out $link >out 2>err; got=$?
    [ $got = 1 ] && grep -q "cannot write" err && [ -L $link ] || fail "--out $link: exit $got, $(cat err)"
done

# ---- what is kept, and under which name ----
"$MEMFIT" $train >out 2>err; grep -q "nothing of this training is kept" err || fail "train without --out: nothing is said"
"$MEMFIT" $train --checkpoint ck2.keras >out 2>err; grep -q "is kept" err && fail "train --checkpoint: it says that nothing is kept"
refused "end the name in .keras: --out trained.keras" $train --out trained
refused "end the name in .keras: --out trained.keras" $train --out trained.h5
[ -e trained ] && fail "--out trained was written"
rm -f through.keras; "$MEMFIT" $train --quiet --json --out /dev/stderr >out 2>through.keras || fail "--out /dev/stderr: exit $?"
"$MEMFIT" plan through.keras --quiet >out || fail "a model through /dev/stderr cannot be read"
exit $((failures > 0))
