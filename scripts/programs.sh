#!/usr/bin/env bash
# Fetches the programs that tests/e2e lets go on after a pause and that the
# template base does not have, once, and prints the folder: numpy.whl from PyPI,
# for the template's Python 3.11, and jvm.tar.gz, a Java runtime from this machine's
# own Debian mirror. What cannot be had is left out, with
# a word of why on stderr; the tests skip what needs it.
set -euo pipefail
cd "$(dirname "$0")/.."
at=$PWD/.tools/programs
numpy=2.2.6
mkdir -p "$at"

if [[ ! -e $at/numpy-$numpy ]]; then
  wheels=$(mktemp -d)
  if python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
    --platform "manylinux2014_$(uname -m)" -d "$wheels" "numpy==$numpy" >&2; then
    mv "$wheels"/numpy-*.whl "$at/numpy.whl"
    touch "$at/numpy-$numpy"
  else
    echo "programs: pip gives no numpy $numpy" >&2
  fi
  rm -rf "$wheels"
fi

jvm=openjdk-17-jre-headless
if [[ ! -e $at/$jvm ]]; then
  debs=$(mktemp -d)
  if (cd "$debs" && apt-get -o APT::Sandbox::User=root download -qq "$jvm" && dpkg-deb -x "$jvm"_*.deb root) >&2; then
    tar -C "$debs/root" --exclude=legal --exclude=man --exclude=classes_nocoops.jsa -c usr/lib/jvm etc/java-17-openjdk | gzip -1 >"$at/jvm.tar.gz"
    touch "$at/$jvm"
  else
    echo "programs: apt gives no $jvm" >&2
  fi
  rm -rf "$debs"
fi
echo "$at"
