#!/usr/bin/env bash
# Check and measure Roundhouse on this machine. No network is used.
#
#   ./gpu-check.sh [--cpu] [tests|steps|generation|texts|images|graphs|memory ...]
#
# Without names: every part, at most 8 minutes each.
#
# PYTHON   the Python that has torch, transformers and onnxruntime; default python3
# WORK     folder of the environment, the unpacked project and the models; default ./work, kept for the next run
# RESULTS  folder of results.json and results.md; default ./results
# --cpu    try everything on a small scale without a GPU
set -euo pipefail

kit=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-$kit/work}
results=${RESULTS:-$kit/results}
given=${PYTHON:-python3}
part_limit_s=480

device=cuda parts=()
for argument; do
    case $argument in
        --cpu) device=cpu ;;
        tests | steps | generation | texts | images | graphs | memory) parts+=("$argument") ;;
        *) echo "usage: gpu-check.sh [--cpu] [tests|steps|generation|texts|images|graphs|memory ...]; got $argument" >&2; exit 2 ;;
    esac
done
[[ ${#parts[@]} -gt 0 ]] || parts=(tests steps generation texts images graphs memory)
mkdir -p "$work" "$results"

install() {
    rm -rf "$work/venv" "$work/roundhouse"
    mkdir "$work/roundhouse"
    tar -xzf "$kit/roundhouse.tar.gz" -C "$work/roundhouse"
    "$given" -m venv --without-pip --system-site-packages "$work/venv"
    # The given Python may be an environment itself. Its packages come after those of the kit.
    "$given" - "$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" << 'SITES'
import sys
sites = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
with open(f"{sys.argv[1]}/given.pth", "w") as file:
    file.write("\n".join(sites) + "\n")
SITES
    local pip=("$kit"/wheels/pip-*.whl)
    PYTHONWARNINGS=ignore "$work/venv/bin/python" "${pip[0]}/pip" install --quiet --no-index --no-deps \
        --ignore-installed --no-warn-script-location --disable-pip-version-check --root-user-action ignore "$kit"/wheels/*.whl
    touch "$work/venv/installed"
}

[[ $work/venv/installed -nt $kit/roundhouse.tar.gz ]] || install
export PYTHONPATH="$work/roundhouse" HF_HUB_OFFLINE=1 TQDM_DISABLE=1 TRANSFORMERS_VERBOSITY=error
cd "$work/roundhouse"
status=0
for part in "${parts[@]}"; do
    echo "== $part"
    timeout --kill-after=10 "$part_limit_s" "$work/venv/bin/python" -m tools.gpu_kit.measure "$part" \
        --device "$device" --minilm "$kit/minilm" --work "$work" --results "$results" || {
        echo "gpu-check.sh: $part failed with status $? (124: not done within $part_limit_s s)" >&2
        status=1
    }
done
cat "$results/results.md"
exit "$status"
