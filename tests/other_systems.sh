#!/usr/bin/env bash
# Runs tests on a system that this machine is not: Linux on AArch64, by emulation, or a newer Debian with its Python.
# Usage: tests/other_systems.sh aarch64|testing FOLDER [PYTEST ARGUMENTS]
#   aarch64   Debian 12 for AArch64 and its Python 3.11, executed by QEMU; without arguments a part of the tests. Kernels
#             are compiled here for there, in two to five minutes, if this machine has a python3.11
#   testing   Debian testing and its Python, 3.14 or later; without arguments the README's test command
# FOLDER gets a root file system of 1 to 2 GB, and is used again where it has one. Needs Debian or Ubuntu, root, a network.
# QEMU_CPU names another processor, as neoverse-v1 with SVE. The emulator runs on this machine's memory model: the order in
# which threads see each other's writes is that of this processor.
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
system=$1
folder=$2
shift 2
sources=$(cd "$(dirname "$0")/.." && pwd)
case $system in
  aarch64)
    suite=bookworm architecture=arm64 machine=aarch64
    # Kernels of all kinds, in plain runs and by threads.
    [ $# -gt 0 ] || set -- tests/core/test_digits.py tests/core/test_shape.py tests/core/test_reading.py tests/moving/test_relayouts.py \
      tests/index/test_indices.py tests/runtime/test_threads.py tests/moving/test_pass_threads.py tests/kernels/test_relayout_kernels.py \
      tests/paged/test_copies.py tests/paged/test_slots.py
    ;;
  testing)
    suite=testing architecture=$(dpkg --print-architecture) machine=$(uname -m)
    ;;
  *)
    echo "aarch64 or testing, got $system" >&2
    exit 2
    ;;
esac

install_here() {
  for package; do
    dpkg -s "$package" >/dev/null 2>&1 || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"; }
  done
}

prepare() {
  install_here debootstrap
  if [ "$architecture" != "$(dpkg --print-architecture)" ]; then
    # The kernel is told of the emulator when the package is installed: there has to be a place to tell it.
    [ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    install_here binfmt-support qemu-user-static
    # In a container the package names no formats when it is installed.
    update-binfmts --import "qemu-$machine" && update-binfmts --enable "qemu-$machine"
  fi
  if [ ! -e "$folder/unpacked" ]; then
    rm -rf "$folder"
    debootstrap --foreign --arch="$architecture" --variant=minbase --include=python3,python3-venv,ca-certificates,git,gcc,libc6-dev \
      "$suite" "$folder" >/dev/null
    # Files are enough: what packages would set up when they are installed, no test needs.
    for package in "$folder"/var/cache/apt/archives/*.deb; do
      dpkg-deb -x "$package" "$folder"
    done
    ln -sf "$(basename "$(ls "$folder"/usr/bin/python3.*[0-9] | head -n 1)")" "$folder/usr/bin/python3"
    touch "$folder/unpacked"
  fi
  # Some systems register the emulator by its path, which the kernel then looks for inside FOLDER.
  local formats=/proc/sys/fs/binfmt_misc/qemu-$machine emulator
  if [ -e "$formats" ]; then
    emulator=$(awk '$1 == "interpreter" {print $2}' "$formats")
    install -D "$emulator" "$folder$emulator"
  fi
}

version=
install_packages() {
  version=$(basename "$(readlink "$folder/usr/bin/python3")")
  version=${version#python}
  [ -e "$folder/w/site/.complete" ] && return
  rm -rf "$folder/w"
  mkdir -p "$folder/w"
  local tags=() tag
  for tag in manylinux_2_34 manylinux_2_31 manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014; do
    tags+=(--platform "${tag}_$machine")
  done
  # Tools that check this source, and are no subject of tests elsewhere, have wheels for few systems.
  python3 - "$sources/pyproject.toml" >"$folder/w/requirements" <<'END'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
print(*project["dependencies"], *project["optional-dependencies"]["test"], sep="\n")
END
  python3 -m pip install -q --disable-pip-version-check --target "$folder/w/site" "${tags[@]}" --python-version "$version" \
    --implementation cp --only-binary=:all: -r "$folder/w/requirements"
  touch "$folder/w/site/.complete"
}

prepare
install_packages
# A file that Python reads, not a variable: tests start processes with variables of their own.
printf '/w/site\n/w/src\n' >"$folder/usr/lib/python3/dist-packages/sources.pth"
rm -rf "$folder/w/src"
mkdir -p "$folder/w/src" "$folder/w/home"
(cd "$sources" && git ls-files -z | tar --null -T - -cf -) | tar -C "$folder/w/src" -xf -

# Run a command there. Mounts of its own end with it.
in_system() {
  unshare --mount --pid --fork bash -euo pipefail -c '
    folder=$1
    shift
    mount -t proc proc "$folder/proc"
    mount --rbind /dev "$folder/dev"
    mount --rbind /sys "$folder/sys"
    mkdir -p "$folder/dev/shm" "$folder/tmp"
    exec chroot "$folder" env -i PATH=/usr/bin:/bin HOME=/w/home LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 \
      NUMBA_CACHE_DIR=/w/cache ${QEMU_CPU:+QEMU_CPU="$QEMU_CPU"} "$@"
  ' bash "$folder" "$@"
}

# Compile kernels here for there, where this machine has that Python: `run_program` alone takes five minutes and more there.
compile_kernels() {
  local python=python$version names
  command -v "$python" >/dev/null || { echo "no $python here: kernels are compiled under the emulator" >&2; return; }
  if [ ! -e "$folder/w/here/.complete" ]; then
    names='^(numba|llvmlite|numpy|ml_dtypes|click|rich|pygments|markdown-it-py|mdurl)='
    "$python" -m pip list --disable-pip-version-check --path "$folder/w/site" --format freeze | grep -iE "$names" \
      >"$folder/w/versions"
    "$python" -m pip install -q --disable-pip-version-check --target "$folder/w/here" -r "$folder/w/versions"
    touch "$folder/w/here/.complete"
  fi
  unshare --mount bash -euo pipefail -c '
    mkdir -p /w
    mount --bind "$1/w" /w
    cd /w/src
    exec env PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/w/here "$2" -m fastindex warmup --target aarch64
  ' bash "$folder" "$python"
}

[ "$system" != aarch64 ] || compile_kernels
in_system sh -c 'cd /w/src && python3 -VV && exec python3 -m pytest -q -p no:cacheprovider "$@"' sh "$@"
