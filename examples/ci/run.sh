#!/bin/bash
# A pipeline's job on a cluster of its own: start it, apply a manifest, check the answer, delete it. See docs/use-in-ci.md.
#
#   MULLION  the program (default: mullion on PATH)
#   KUBECTL  kubectl (default: kubectl on PATH)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mullion=${MULLION:-mullion}
kubectl=${KUBECTL:-kubectl}

dir=$(mktemp -d)/ci
# Whatever happens below: the cluster ends, and nothing of it stays.
cleanup() {
    code=$?
    if [ "$code" != 0 ]; then
        "$mullion" support-bundle --dir "$dir" --output "${BUNDLE:-mullion-support.tar.gz}" || true
    fi
    "$mullion" down --dir "$dir" --if-running --delete
    rmdir "$(dirname "$dir")" 2>/dev/null || true
    exit "$code"
}
trap cleanup EXIT

# Standard output is one JSON document, of the cluster or of the error; progress goes to standard error.
cluster=$("$mullion" up --dir "$dir" --name ci --port 0 --detach --timeout 3m -o json)
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1" <<<"$cluster"; }
KUBECONFIG=$(field kubeconfig)
export KUBECONFIG
echo "cluster $(field name) answers at $(field apiServer)"

"$kubectl" apply -f "$here/../iis.yaml"
"$kubectl" rollout status deployment/iis --timeout=2m

# The assertion: a Windows pod answers by its Service's name, asked from a Windows pod.
answer=$("$kubectl" exec deployment/iis -- curl -s -f http://iis/)
case $answer in
*"IIS Windows Server"*) echo "the page is there" ;;
*) echo "not the page of IIS: $answer" >&2 && exit 1 ;;
esac
