#!/usr/bin/env bash
# Builds a template of the name that E2B's code interpreter asks for: base with numpy,
# which smolagents imports in the sandbox. `cloud-sandbox template build
# code-interpreter-v1` makes a larger one, in ten minutes.
set -euo pipefail
source "$(dirname "$0")/../../fetch.sh"
numpy=2.2.6 # the newest for the template's Python 3.11
fetch "${UV%/uv}/pip" download -q --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
  --platform "manylinux2014_$(uname -m)" -d wheels "numpy==$numpy"
cat >wheels/Dockerfile <<'DOCKERFILE'
FROM base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
COPY *.whl /tmp/wheels/
RUN sudo pip install --no-index --find-links /tmp/wheels numpy
DOCKERFILE
"$CLOUD_SANDBOX" template build code-interpreter-v1 --dockerfile wheels/Dockerfile
