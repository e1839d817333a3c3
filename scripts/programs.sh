#!/usr/bin/env bash
# Fetches programs that tests/e2e and tests/e2b need and the template base does
# not have, once, and prints the folder: numpy.whl from PyPI, for the template's
# Python 3.11, and from this machine's own Debian mirror jvm.tar.gz, a Java runtime,
# and r.tar.gz, R with what it needs to draw. What cannot be had is left out, with
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

# The libraries of R that base has not, without those for windows on a screen.
r=(
  r-base-core fontconfig-config fonts-dejavu-core libblas3 libcairo2 libdatrie1 libdeflate0 libfontconfig1
  libfreetype6 libfribidi0 libgfortran5 libglib2.0-0 libgomp1 libgraphite2-3 libharfbuzz0b libice6 libicu72 libjbig0
  libjpeg62-turbo liblapack3 liblerc4 libpango-1.0-0 libpangocairo-1.0-0 libpangoft2-1.0-0 libpaper1 libpixman-1-0
  libpng16-16 libquadmath0 libsm6 libthai-data libthai0 libtiff6 libwebp7 libx11-6 libxau6 libxcb-render0 libxcb-shm0
  libxcb1 libxdmcp6 libxext6 libxrender1 libxss1 libxt6
)
if [[ ! -e $at/r-1 ]]; then
  debs=$(mktemp -d)
  # What the packages' own scripts would do is the links and the copy.
  if (
    cd "$debs" && apt-get -o APT::Sandbox::User=root download -qq "${r[@]}" &&
      for deb in *.deb; do dpkg-deb -x "$deb" root || exit; done &&
      cp root/usr/lib/R/etc/Renviron.ucf root/etc/R/Renviron &&
      for lib in root/usr/lib/*/{blas/libblas,lapack/liblapack}.so.3; do ln -s "${lib#root}" "${lib%/*/*}"/ || exit; done
  ) >&2; then
    tar -C "$debs/root" --owner=0 --group=0 --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale \
      --exclude=./usr/lib/R/library/translations --exclude=./usr/lib/R/library/tcltk -c . | gzip -1 >"$at/r.tar.gz"
    touch "$at/r-1"
  else
    echo "programs: apt gives no R" >&2
  fi
  rm -rf "$debs"
fi
echo "$at"
