#!/bin/sh
# The public headers: each alone and all together, in C99, C11 and C++, without a warning; what MEMFIT_..._OPTIONS and the like give is the same in all.
set -u
. "$(dirname "$0")/lib.sh"
cd "$dir" || exit 1
headers=$(cd "$MEMFIT_SOURCE/include/memfit" && ls *.h)
flags="-Wall -Wextra -pedantic -Wshadow -Wconversion -Werror -I$MEMFIT_SOURCE/include -fsyntax-only"

# Every macro that begins a struct, by its name: MEMFIT_POOL_OPTIONS is of memfit_pool_options.
macros=$(sed -n 's/^#define \(MEMFIT_[A-Z_]*\) MEMFIT_INIT.*/\1/p' "$MEMFIT_SOURCE"/include/memfit/*.h)
[ "$(echo "$macros" | wc -l)" -ge 23 ] || fail "$(echo "$macros" | wc -l) macros"
{
    for h in $headers; do echo "#include <memfit/$h>"; done
    echo '#include <stdio.h>'
    echo 'static void show(const char *name, const void *p, size_t n)'
    echo '{ const unsigned char *b = (const unsigned char *)p; fputs(name, stdout); for (size_t i = 0; i < n; i++) printf(" %02x", b[i]); puts(""); }'
    echo 'int main(void) {'
    for m in $macros; do
        t=$(echo "$m" | tr 'A-Z' 'a-z')
        echo "    { static $t v = $m; show(\"$m\", &v, sizeof v); }"
    done
    echo '    return 0; }'
} >all.c
cp all.c all.cpp
for compiler in "cc -std=c99" "cc -std=c11" "c++ -std=c++11" "c++ -std=c++17" "c++ -std=c++20"; do
    name=${compiler%% *} kind=c
    command -v "$name" >/dev/null || { echo "skipped: there is no $name"; continue; }
    [ "$name" = cc ] || kind=c++
    for h in $headers; do
        echo "#include <memfit/$h>" | $compiler $flags -x $kind - 2>err || fail "$compiler: $h: $(head -3 err)"
    done
    file=all.c; [ $kind = c ] || file=all.cpp
    $compiler $flags $file 2>err || fail "$compiler: $(grep -c warning err) warnings, $(head -3 err)"
    $compiler -I"$MEMFIT_SOURCE/include" $file -o program 2>err || { fail "$compiler: $(head -3 err)"; continue; }
    ./program >"$(echo "$compiler" | tr ' ' '_').txt"
done
for f in c++_*.txt; do [ ! -e "$f" ] || cmp -s "$f" cc_-std=c11.txt || fail "$f: $(diff "$f" cc_-std=c11.txt | head -2 | cut -c1-200)"; done
exit $((failures > 0))
