#!/bin/sh
# Installs the wheel of /dist into /opt/kmigrate, with the versions of requirements.lock; each file's hash must be there.
# Arguments: extras of the package, for example `verify`.
set -eu
: "${DIST:=/dist}" "${INTO:=/opt/kmigrate}" "${LOCK:=requirements.lock}"

wheel=$(echo "$DIST"/kmigrate-*.whl)
extras=$(IFS=,; echo "$*")
wanted="kmigrate${extras:+[$extras]} @ file://$wheel"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

[ -x "$INTO/bin/python" ] || python -m venv "$INTO"
pip() {
    "$INTO/bin/python" -I -m pip --quiet --no-cache-dir --disable-pip-version-check "$@"
}

grep '^[A-Za-z0-9].*==' "$LOCK" | sed 's/ *\\$//' > "$work/versions"
pip download --dest "$work/files" --constraint "$work/versions" "$wanted"
rm "$work/files/$(basename "$wheel")"
for file in "$work"/files/*; do
    hash=$(sha256sum "$file" | cut -d ' ' -f 1)
    grep -q "sha256:$hash" "$LOCK" || { echo "not a file of $LOCK: $(basename "$file")" >&2; exit 1; }
done
pip install --no-compile --no-deps "$work"/files/* "$wanted"
