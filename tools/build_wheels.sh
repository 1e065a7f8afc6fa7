#!/usr/bin/env bash
# Builds the files of a release: the source distribution, the manylinux_2_28 wheels, and for programs in C the archives
# libnvfp4-VERSION-linux-PROCESSOR.tar.gz of what tools/build_library.sh makes:
#
#     tools/build_wheels.sh FOLDER            all, then tools/check_wheels.sh
#     tools/build_wheels.sh FOLDER x86_64     wheel and archive of one processor (or aarch64), unchecked
#
# gcc compiles and links, as in every other build, so a wheel has the machine code that was tested. zig only writes the
# symbol tables of glibc 2.28 that module and library are linked with. Device code is compiled once for all; NVFP4_CUDA=0
# leaves it out; build/cuda is taken where it is up to date (of the same flags: NVFP4_WERROR counts). The same commit,
# images, compilers and SOURCE_DATE_EPOCH (else the commit's time) give the same bytes.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,6p' "$0"; exit 2; }
mkdir -p "$1"
output=$(realpath "$1")
shift
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
cd "$root"
glibc=2.28
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct || date +%s)}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_COMPILE=0
export ZIG_GLOBAL_CACHE_DIR=$work/zig ZIG_LOCAL_CACHE_DIR=$work/zig
umask 022 # of the files in the archives

python3 -m venv "$work/tools"
source "$work/tools/bin/activate"
pip install -q build==1.6.1 setuptools==84.2.1 ziglang==0.17.1 auditwheel==6.8.2
required='import sys; sys.path.insert(0, "build_backend"); import nvfp4_cuda; print(*nvfp4_cuda.required_wheels(), sep="\n")'
mapfile -t compiler < <(python -c "$required" | grep "^nvidia" || true)
[ ${#compiler[@]} = 0 ] || pip install -q "${compiler[@]}"

logged() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }; }

# packed PARENT/NAME: writes NAME.tar.gz.
packed() {
    tar -C "$(dirname "$1")" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        -c "$(basename "$1")" | gzip -9n >"$output/$(basename "$1").tar.gz"
}

logged python -m build --no-isolation --sdist --outdir "$work/sdist" .
sdist=$(basename "$work"/sdist/*.tar.gz)
tar -xzf "$work/sdist/$sdist" -C "$work"
source=$work/${sdist%.tar.gz}
packed "$source"
if [ -d build/cuda ]; then # images that are up to date
    mkdir "$source/build"
    cp -r build/cuda "$source/build"
fi

# symbol_tables ARCH GCC: writes $work/ARCH, whose libraries gcc -B takes before this machine's.
symbol_tables() {
    local folder=$work/$1 nonshared made
    nonshared=$("$2" -print-file-name=libc_nonshared.a)
    mkdir "$folder"
    echo "int unused;" >"$folder/empty.c"
    python -m ziglang cc -target "$1-linux-gnu.$glibc" -shared -lm -ldl -lpthread -o "$folder/empty.so" "$folder/empty.c"
    made=$(dirname "$(find "$ZIG_GLOBAL_CACHE_DIR" -name libc.so.6)")
    cp "$made"/lib{c,m,dl,pthread,ld}.so.* "$folder"
    rm -r "$ZIG_GLOBAL_CACHE_DIR"
    ln -s libm.so.6 "$folder/libm.so"
    ln -s libdl.so.2 "$folder/libdl.so"
    echo "GROUP ( $folder/libc.so.6 $nonshared AS_NEEDED ( $folder/libld.so.2 ) )" >"$folder/libc.so"
    # First what every program has a copy of, pthread_atfork among it.
    echo "GROUP ( $nonshared $folder/libpthread.so.0 )" >"$folder/libpthread.so"
}

# Fails if FILE needs a symbol that glibc 2.28 lacks: one of a later version, or of none. The names with no version are
# Python's, or weak ones of the start files.
check_symbols() {
    local missing newest
    missing=$(readelf --dyn-syms --wide "$1" |
        awk '$7 == "UND" && $8 && $8 !~ /@/ && $5 != "WEAK" && $8 !~ /^_?Py/ {print $8}')
    [ -z "$missing" ] || { echo "not in glibc $glibc: $missing"; exit 1; }
    newest=$(readelf --dyn-syms --wide "$1" | grep -o '@GLIBC_2[.0-9]*' | sort -V | tail -n 1)
    [ "$(printf '%s\n' "$newest" "@GLIBC_$glibc" | sort -V | tail -n 1)" = "@GLIBC_$glibc" ] ||
        { echo "$1 needs ${newest#@}"; exit 1; }
}

archs=("$@")
[ $# != 0 ] || archs=(x86_64 aarch64)
for arch in "${archs[@]}"; do
    gcc=gcc
    [ "$arch" = "$(uname -m)" ] || gcc=$arch-linux-gnu-gcc
    symbol_tables "$arch" "$gcc"
    (
        cd "$source"
        export CC="$gcc -B$work/$arch/" LDSHARED="$gcc -B$work/$arch/ -shared" _PYTHON_HOST_PLATFORM=linux-$arch
        logged python -m build --no-isolation --wheel "-C--build-option=--plat-name=manylinux_2_${glibc#2.}_$arch" \
            --outdir "$work/$arch/wheel" .
    )
    wheel=$(echo "$work/$arch"/wheel/*.whl)
    python -m zipfile -e "$wheel" "$work/$arch/unpacked"
    check_symbols "$work/$arch/unpacked/nvfp4/_C.abi3.so"
    # It is built with its platform tag: auditwheel's repair, which has nothing to add, takes this machine's alone.
    auditwheel show "$wheel" | tee "$work/log"
    needs=$(tr -s '\n' ' ' <"$work/log" | grep -o "platform tag: \"manylinux_2_[0-9]*_$arch\"" | grep -o '2_[0-9]*')
    [ "${needs#2_}" -le "${glibc#2.}" ] || { echo "needs glibc ${needs/_/.}"; exit 1; }
    cp "$wheel" "$output"

    library=$work/$arch/lib${source##*/}-linux-$arch
    export CC="$gcc -B$work/$arch/" AR=${gcc%gcc}ar OBJCOPY=${gcc%gcc}objcopy
    "$source/tools/build_library.sh" "$library"
    unset CC AR OBJCOPY
    check_symbols "$library/lib/libnvfp4.so"
    cp LICENSE "$library"
    packed "$library"
done
ls -l "$output"
[ $# != 0 ] || tools/check_wheels.sh "$output"
