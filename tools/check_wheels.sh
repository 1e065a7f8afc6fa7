#!/usr/bin/env bash
# Installs what tools/build_wheels.sh left in a folder into fresh environments and runs it there:
#
#     tools/check_wheels.sh FOLDER
#
#   archives  examples/product.c, linked with each library, in a root with glibc's files and no others
#   x86_64    every Python from 3.10 that is here, without torch and NumPy; one with NumPy computes
#   sdist     builds without nvcc's part
#   aarch64   Debian's Python for arm64 under qemu-aarch64: the CPU part, which must give the same bits with NumPy, and
#             the operators in torch 2.10.0, whose wheel for aarch64 is the one build for CPUs of so old a torch
#
# The roots have this machine's glibc or Debian's, newer than 2.28: the build alone has compared symbols with 2.28's.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,4p' "$0"; exit 2; }
folder=$(realpath "$1")
example=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../examples/product.c")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_COMPILE=0
unset PYTHONPATH
numpy=numpy==2.2.6 # the last one for Python 3.10

# Sums of these data are exact, so every machine gives the same bits.
cat >digest.py <<'PYTHON'
import hashlib, platform
import numpy as np, nvfp4

random, digest = np.random.default_rng(0), hashlib.sha256()
for m, n, k in ((1, 300, 512), (130, 67, 1024), (64, 256, 7168)):
    a, b = (random.integers(0, 256, (rows, k // 2), dtype=np.uint8) for rows in (m, n))
    scales = [random.choice(np.uint8([0x38, 0x40, 0x48]), (rows, k // 16)) for rows in (m, n)]
    for dtype in ("float16", "float32"):
        swizzled = nvfp4.gemm(a, b, *map(nvfp4.swizzle, scales), out_dtype=dtype)
        assert (swizzled == nvfp4.gemm(a, b, *scales, scale_layout="linear", out_dtype=dtype)).all()
        digest.update(swizzled.tobytes())
    x = random.integers(-1000, 1000, (m, k)).astype(np.float32) / 64
    data, scale = nvfp4.quantize(x, global_scale=0.25)
    for array in (data, scale, nvfp4.dequantize(data, scale), nvfp4.unswizzle(scale, m, k // 16)):
        digest.update(array.tobytes())
print(platform.machine(), platform.python_version(), nvfp4.info()["cpu_kernel"], digest.hexdigest())
PYTHON

declare -A loaders=([x86_64]=ld-linux-x86-64.so.2 [aarch64]=ld-linux-aarch64.so.1)

# in_root ROOT ARCH: runs /product there.
in_root() {
    if [ "$2" != "$(uname -m)" ]; then
        "qemu-$2" -L "$1" -E LD_LIBRARY_PATH=/lib "$1/product"
    elif [ "$(id -u)" = 0 ]; then
        chroot "$1" /product
    else
        "$1/lib/${loaders[$2]}" --library-path "$1/lib" "$1/product"
    fi
}

for arch in x86_64 aarch64; do
    tar -xzf "$folder"/libnvfp4-*-linux-"$arch".tar.gz
    prefix=$(echo "$work"/libnvfp4-*-linux-"$arch")
    gcc=gcc
    [ "$arch" = "$(uname -m)" ] || gcc=$arch-linux-gnu-gcc
    root=$work/root-$arch
    mkdir -p "$root/lib"
    ln -s lib "$root/lib64"
    for name in "${loaders[$arch]}" libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0; do
        cp -L "$("$gcc" -print-file-name="$name")" "$root/lib"
    done
    for library in libnvfp4.a libnvfp4.so; do
        rm -f "$root/product"
        read -ra flags < <(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs nvfp4)
        "$gcc" -std=c11 "$example" "${flags[@]/-lnvfp4/-l:$library}" -lm -ldl -lpthread -o "$root/product"
        [ $library = libnvfp4.a ] || cp -P "$prefix"/lib/libnvfp4.so* "$root/lib"
        said=$(in_root "$root" "$arch") || { echo "$said"; echo "$arch, $library: product.c fails"; exit 1; }
        echo "$arch, $library: ${said%%$'\n'*}"
    done
done

fresh() {
    "${2:-python3}" -m venv "$work/$1"
    source "$work/$1/bin/activate"
}

if command -v pyenv >/dev/null; then
    PYENV_VERSION=$(pyenv versions --bare | paste -sd:)
    export PYENV_VERSION
fi
for minor in 10 11 12 13 14; do
    python=python3.$minor
    "$python" -c '' 2>/dev/null || { echo "$python: not here"; continue; }
    fresh "$python" "$python"
    pip install -q --no-index "$folder"/nvfp4-*x86_64.whl
    python -c "import nvfp4, sys; print(sys.version.split()[0], nvfp4.info()['version'], *nvfp4.info()['archs'])"
    nvfp4 --help >/dev/null
    deactivate
done
unset PYENV_VERSION

fresh numpy
pip install -q --only-binary :all: "$numpy" "$folder"/nvfp4-*x86_64.whl
here=$(python digest.py)
echo "$here"
deactivate

fresh sdist
NVFP4_CUDA=0 pip install -q "$folder"/nvfp4-*.tar.gz
python -c "import nvfp4; print('from the source distribution:', nvfp4.info()['version'])"
deactivate

# A root for qemu-aarch64: apt's own files in a folder, so that the machine's packages stay as they are.
mkdir -p apt/{lists,cache}/partial apt/cache/archives/partial root
touch apt/status
cat >apt/conf <<EOF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::State "$work/apt";
Dir::State::lists "$work/apt/lists";
Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt/cache";
Debug::NoLocking "1";
EOF
export APT_CONFIG=$work/apt/conf
apt-get -qq update
apt-get -qq -y --no-install-recommends --download-only install \
    python3 libstdc++6 libgomp1 >/dev/null
for package in apt/cache/archives/*.deb; do dpkg-deb -x "$package" root; done
emulated=(qemu-aarch64 -L "$work/root" "$work/root/usr/bin/python3")
version=$("${emulated[@]}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
pip download -q --dest wheels --no-deps --only-binary :all: --platform manylinux_2_17_aarch64 \
    --python-version "$version" "$numpy"
for wheel in wheels/*.whl "$folder"/nvfp4-*aarch64.whl; do python3 -m zipfile -e "$wheel" site; done
there=$(PYTHONPATH=$work/site "${emulated[@]}" digest.py)
echo "$there"
[ "${here##* }" = "${there##* }" ] || { echo "the results differ"; exit 1; }

# pip would take what torch needs on this machine, CUDA: it gets torch alone, and by name what torch imports.
pip download -q --dest torch --no-deps --only-binary :all: --platform manylinux_2_28_aarch64 \
    --python-version "$version" torch==2.10.0
pip download -q --dest torch --only-binary :all: filelock fsspec jinja2 networkx sympy typing_extensions
for wheel in torch/*.whl; do python3 -m zipfile -e "$wheel" site; done
cat >operators.py <<'PYTHON'
import torch, nvfp4

x, w = (torch.arange(rows * 64).mul(step).remainder(13).sub(6).view(rows, 64).float() for rows, step in ((5, 7), (3, 5)))
(a, scale_a), (b, scale_b) = nvfp4.quantize(x), nvfp4.quantize(w)
exact = (nvfp4.dequantize(a, scale_a).double() @ nvfp4.dequantize(b, scale_b).double().T).float()
none = torch.empty(0, dtype=torch.uint8)
options = (none, none, none, 1.0, 0.0, "128x4", "auto", 0, torch.float32)
for place in ("cpu", "meta"):
    y = torch.ops.nvfp4.gemm(*(t.to(place) for t in (a, b, scale_a, scale_b)), *options)
    assert y.shape == exact.shape and (place == "meta" or torch.equal(y, exact)), y
assert torch.equal(nvfp4.gemm(a, b, scale_a, scale_b, out_dtype=torch.float32), exact)
print("torch.ops.nvfp4 in torch", torch.__version__)
PYTHON
PYTHONPATH=$work/site "${emulated[@]}" operators.py
