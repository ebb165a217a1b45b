"""Lint or render the chart with the real Helm: `python helm.py < request > answer`, both JSON.

Helm is a library of the package helm-python-sdk. It runs in a process of its own, because it starts threads and handles
signals, and tests fork.
"""

import json
import sys

import helm_python

RELEASE, NAMESPACE = "prod", "models"
KUBERNETES = "v1.32.0"
"""The oldest version that the chart supports."""


def main() -> int:
    """Answer one request: `{"chart": folder, "values": {…}, "do": "lint" | "render" | "notes"}`."""
    request = json.load(sys.stdin)
    answer: object
    try:
        if request["do"] == "lint":
            answer = helm_python.lint(request["chart"], request["values"], strict=True, kube_version=KUBERNETES)
        else:
            with helm_python.Chart.load(request["chart"]) as chart:
                answer = chart.render(request["values"], name=RELEASE, namespace=NAMESPACE, is_install=True)
    except helm_python.HelmError as error:
        print(error, file=sys.stderr)
        return 1
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
