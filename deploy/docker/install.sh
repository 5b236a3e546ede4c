#!/bin/sh
# Installs the wheel of /dist into /opt/kmigrate, with the versions and hashes of requirements.lock.
# Arguments: extras of the package, for example `verify`.
set -eu
: "${DIST:=/dist}" "${INTO:=/opt/kmigrate}" "${LOCK:=requirements.lock}"

wheel=$(echo "$DIST"/kmigrate-*.whl)
extras=$(IFS=,; echo "$*")
hash=$(sha256sum "$wheel" | cut -d ' ' -f 1)
wanted=$(mktemp)
echo "kmigrate${extras:+[$extras]} @ file://$wheel --hash=sha256:$hash" > "$wanted"

[ -x "$INTO/bin/python" ] || python -m venv "$INTO"
"$INTO/bin/python" -m pip install --no-cache-dir --disable-pip-version-check --no-compile \
    --requirement "$wanted" --constraint "$LOCK"
rm "$wanted"
