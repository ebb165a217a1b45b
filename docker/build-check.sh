#!/usr/bin/env bash
# Build the images without a Docker engine, start each like a container, send it requests and stop it. The results go to
# build-check.json. A test compares the inputs recorded there with the current ones: run this script when it fails.
#
#   docker/build-check.sh [onnx] [cpu] [ray] [cuda] all by default; minutes each, cuda needs 40 GB of disk
#   docker/build-check.sh --inputs [ray]            print the hash of all inputs of the images, or of the image with Ray
#
# Needs root on Debian with buildah, debootstrap, iproute2 and gcc, and the Python version of that Debian. A Debian root
# made by debootstrap replaces the two base images. Settings of pip and debootstrap apply, so mirrors work;
# TORCH_INDEX_URL is the Dockerfile's. BUILD_CHECK_DIR keeps the root and the wheels for the next run.
# The image for CUDA compiles a kernel too, with the launcher of its build: no GPU is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
BUILD_CHECK_DIR=${BUILD_CHECK_DIR:-/var/tmp/roundhouse-build-check}
TORCH_INDEX_URL=${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}
RELEASE=bookworm
BASE=localhost/debian-root
RECORD=docker/build-check.json

main() {
    if [[ "${1:-}" == --inputs ]]; then
        inputs "${2:-}"
        return
    fi
    check_tools
    trap 'rm -rf "$BUILD_CHECK_DIR/storage" "$BUILD_CHECK_DIR/run"' EXIT
    make_base
    [[ $# -gt 0 ]] || set -- onnx cpu ray cuda
    local variant
    for variant in "$@"; do check "$variant"; done
}

# Hash all inputs of the images except the code of this repository; with `ray` also those of docker/ray.Dockerfile.
inputs() {
    local file device frameworks
    {
        [[ "${1:-}" != ray ]] || cat docker/ray.Dockerfile docker/ray-constraints.txt
        for file in .dockerignore docker/Dockerfile docker/constraints.txt \
            docker/{requirements,slim,healthcheck,triton_launcher}.py docker/config/*.toml; do
            echo "$file"
            cat "$file"
        done
        for device in cpu gpu; do
            for frameworks in all onnx; do "$PYTHON" docker/requirements.py "$device" "$frameworks"; done
        done
    } | "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

check_tools() {
    local tool
    for tool in buildah debootstrap ip unshare chroot gcc nm; do
        command -v "$tool" > /dev/null || {
            echo "$tool is missing; apt-get install buildah debootstrap iproute2 gcc libc6-dev" >&2
            exit 2
        }
    done
    [[ $EUID == 0 ]] || { echo 'expected root: debootstrap and chroot isolation need it' >&2; exit 2; }
}

# Make the Debian root an image, without the files that Docker's slim images leave out, such as apt's caches.
make_base() {
    local root=$BUILD_CHECK_DIR/making container
    if [[ ! -e $BUILD_CHECK_DIR/root-$RELEASE ]]; then
        rm -rf "$root"
        mkdir -p "$root"
        say "debootstrap $RELEASE"
        debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip "$RELEASE" "$root" \
            > "$BUILD_CHECK_DIR/debootstrap.log"
        rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
            "$root"/usr/share/{doc,man,locale}/*
        printf 'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n' > "$root/etc/apt/apt.conf.d/no-caches"
        mv "$root" "$BUILD_CHECK_DIR/root-$RELEASE"
    fi
    container=$(buildah_here from scratch)
    buildah_here copy --quiet "$container" "$BUILD_CHECK_DIR/root-$RELEASE" / > /dev/null
    buildah_here commit --quiet "$container" "$BASE" > /dev/null
    buildah_here rm "$container" > /dev/null
}

check() {
    local variant=$1 target=cpu frameworks=all image=localhost/roundhouse:$1 started container root log
    case $variant in
        onnx) frameworks=onnx ;;
        cpu | ray) ;;
        cuda) target=cuda ;;
        *) echo "expected onnx, cpu, ray or cuda, got $variant" >&2; exit 2 ;;
    esac
    fetch_wheels "$variant" "$target" "$frameworks"
    say "$variant: building"
    started=$SECONDS
    log=$BUILD_CHECK_DIR/$variant.log
    build "$target" "$frameworks" "$image" "$BUILD_CHECK_DIR/wheels-$variant" > "$log" 2>&1 || {
        tail -n 40 "$log" >&2
        exit 1
    }
    if [[ $variant == ray ]]; then
        add_ray "$image" "$BUILD_CHECK_DIR/wheels-ray" >> "$log" 2>&1 || {
            tail -n 40 "$log" >&2
            exit 1
        }
    fi
    say "$variant: built in $((SECONDS - started)) s; starting it"
    container=$(buildah_here from "$image")
    root=$(buildah_here mount "$container")
    buildah_here inspect --type image "$image" > "$BUILD_CHECK_DIR/$variant-image.json"
    # In its own network and mount namespaces, where the image's address and port are free and not reachable from outside.
    unshare --net --mount "$PYTHON" -m tests.docker.container_check "$variant" "$(inputs "$variant")" "$root" \
        "$BUILD_CHECK_DIR/$variant-image.json" "$RECORD"
    buildah_here rm "$container" > /dev/null
    buildah_here rmi --force "$image" > /dev/null
}

# Outside the build, with this machine's pip. torch is pinned with ===, because == 2.13.0 also matches 2.13.0+cpu.
fetch_wheels() {
    local variant=$1 device=${2/cuda/gpu} frameworks=$3 folder=$BUILD_CHECK_DIR/wheels-$1 torch
    local -a download=("$PYTHON" -m pip download --quiet --quiet --only-binary=:all: --dest "$folder"
        --find-links "$folder" --constraint docker/constraints.txt) exact=()
    say "$variant: fetching wheels"
    rm -rf "$folder"
    mkdir -p "$folder"
    torch=$(sed -n 's/^torch==//p' docker/constraints.txt)
    "$PYTHON" docker/requirements.py "$device" "$frameworks" > "$BUILD_CHECK_DIR/$variant-requirements.txt"
    case $variant in
        cpu | ray)
            exact=("torch===$torch+cpu")
            "${download[@]}" --no-deps --retries 1 --index-url "$TORCH_INDEX_URL" "${exact[@]}"
            ;;
        cuda) exact=("torch===$torch") ;;
    esac
    "${download[@]}" --requirement "$BUILD_CHECK_DIR/$variant-requirements.txt" setuptools setuptools-scm "${exact[@]}"
    if [[ $variant == ray ]]; then
        "${download[@]}" --constraint docker/ray-constraints.txt 'ray[serve,data]'
    fi
}

build() {
    local target=$1 frameworks=$2 image=$3 wheels=$4
    buildah_here bud --isolation chroot --network host --pull-never --format docker --file docker/Dockerfile \
        --target "$target" --tag "$image" --volume "$wheels:/mnt:ro" \
        --build-arg BASE_IMAGE="$BASE" --build-arg CPU_BASE_IMAGE="$BASE" --build-arg FRAMEWORKS="$frameworks" \
        --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/mnt .
}

# Build docker/ray.Dockerfile from the image, under the same name.
add_ray() {
    local image=$1 wheels=$2
    buildah_here bud --isolation chroot --network host --pull-never --format docker --file docker/ray.Dockerfile \
        --tag "$image" --volume "$wheels:/mnt:ro" --build-arg IMAGE="$image" \
        --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/mnt docker
}

buildah_here() {
    buildah --storage-driver vfs --root "$BUILD_CHECK_DIR/storage" --runroot "$BUILD_CHECK_DIR/run" "$@"
}

say() {
    echo "[$(date +%T)] $*" >&2
}

main "$@"
