#!/usr/bin/env bash
# Builds the library for programs in C and C++ (docs/c-api.md):
#
#     tools/build_library.sh PREFIX
#
# writes PREFIX/include/nvfp4.h, PREFIX/lib/libnvfp4.a, PREFIX/lib/libnvfp4.so, a link to libnvfp4.so.0, and
# PREFIX/lib/pkgconfig/nvfp4.pc. PREFIX may be moved. Both libraries define the functions of nvfp4.h and no other global name. They have the
# GPU code that `pip install .` has left in build/cuda; without it, or with NVFP4_CUDA=0, they are for the CPU alone.
# CC, AR and OBJCOPY name other programs than gcc, ar and objcopy; CC must be a gcc.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,9p' "$0"; exit 2; }
prefix=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

read -ra cc <<<"${CC:-gcc}"
macros=$("${cc[@]}" -dM -E -x c /dev/null)
if [[ $macros = *__clang__* ]]; then
    echo "CC: is clang; must be gcc. Programs that use the library may be compiled by either." >&2
    exit 1
fi

# The planners must be those of the kernels: build/cuda is that of these sources if it is younger than each.
flags=() gpu="for the CPU alone: no build has left GPU code in build/cuda"
if [ "${NVFP4_CUDA:-1}" = 0 ]; then
    gpu="for the CPU alone: NVFP4_CUDA=0"
elif [ -f build/cuda/images.inc ]; then
    made=build/cuda/images.inc
    newer=$(find csrc/{backends.def,common,kernels} -name '*.c' -o -type f -newer $made -print -quit)
    if [ -n "$newer" ]; then
        echo "build/cuda: is older than $newer; must have the GPU code of these sources." \
            "Run \`pip install .\`, or set NVFP4_CUDA=0." >&2
        exit 1
    fi
    flags=(-DNVFP4_CUDA -Ibuild/cuda)
    gpu="with GPU code for $(sed -n 's/#define IMAGE_ARCHS "\(.*\)"/\1/p' $made)"
fi

# NVFP4_LIBRARY makes nvfp4.h export what it declares. Idle threads of the library stay in it, so it is never unloaded.
find csrc/{api,common,cpu,driver,kernels,plan} -name '*.c' -print0 |
    xargs -0 -P "$(nproc)" -I{} bash -c \
        'source=$1 output=$2/${1//\//-}.o; shift 2; "$@" -c "$source" -o "$output" || exit 255' _ {} "$work" \
        "${cc[@]}" -std=c11 -O3 -Wall -Wextra -Icsrc -fPIC -fexceptions -fvisibility=hidden \
        -DNVFP4_LIBRARY "${flags[@]}"
"${cc[@]}" -r -nostdlib -o "$work/nvfp4.o" "$work"/*.c.o
"${OBJCOPY:-objcopy}" --localize-hidden "$work/nvfp4.o"
"${AR:-ar}" rcs "$work/libnvfp4.a" "$work/nvfp4.o"
"${cc[@]}" -shared -o "$work/libnvfp4.so.0" "$work/nvfp4.o" -Wl,-soname,libnvfp4.so.0 -Wl,-z,defs -Wl,-z,nodelete \
    -Wl,-s -lm -ldl -lpthread

mkdir -p "$prefix"/{include,lib/pkgconfig}
cp csrc/nvfp4.h "$prefix/include"
cp "$work"/libnvfp4.{a,so.0} "$prefix/lib"
ln -sf libnvfp4.so.0 "$prefix/lib/libnvfp4.so"
cat >"$prefix/lib/pkgconfig/nvfp4.pc" <<END
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: nvfp4
Description: Matrix products of NVFP4 data on CPUs and NVIDIA GPUs
Version: $(sed -n 's/#define NVFP4_VERSION *"\(.*\)"/\1/p' csrc/nvfp4.h)
Cflags: -I\${includedir}
Libs: -L\${libdir} -lnvfp4
Libs.private: -lm -ldl -lpthread
END
echo "$prefix: libnvfp4.a, libnvfp4.so and nvfp4.h, $gpu"
