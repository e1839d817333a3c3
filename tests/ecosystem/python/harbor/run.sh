#!/usr/bin/env bash
# Runs the task beside this file with Harbor's oracle, which applies the solution and needs
# no model, and checks that the tests of the task then pass: "run.sh FOLDER", a folder to
# keep the installation in. Harbor takes Python 3.12 or newer. Where this machine's is
# older, Harbor runs in a root filesystem of Debian 13.
set -euo pipefail
at=$1
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../../fetch.sh"
pinned=$(cat "$here/requirements.txt" "$here/run.sh" | sha256sum)
if [[ $(cat "$at/stamp" 2>/dev/null) != "$pinned" ]]; then
  rm -rf --one-file-system "$at"
  mkdir -p "$at"
  if python3 -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
    python=$(python3 -c 'import platform; print(platform.python_version())')
    mkdir -p "$at/root/opt"
  else
    python=3.13
    debootstrap --variant=minbase --include=python3,ca-certificates trixie "$at/root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$at/log" 2>&1 ||
      { echo "Harbor needs Python 3.12, and debootstrap gave no Debian 13: $(tail -n 1 "$at/log")"; exit 77; }
    rm -rf "$at"/root/var/cache/apt/archives/*.deb "$at"/root/var/lib/apt/lists/*
    touch "$at/debian"
  fi
  fetch "$UV" pip install -q --target "$at/root/opt/harbor" --python-version "$python" -r "$here/requirements.txt"
  echo "$pinned" >"$at/stamp"
fi

cp -r "$here/task" .
export PYTHONPATH=$at/root/opt/harbor
inside=(python3 "$at/root/opt/harbor/bin/harbor")
if [[ -e $at/debian ]]; then
  # shellcheck disable=SC2016 # for the shell inside
  inside=(unshare --mount bash -c '
    root=$1 work=$2
    mount --bind /dev "$root/dev"
    mount -t proc proc "$root/proc"
    for file in /etc/hosts /etc/resolv.conf; do touch "$root$file" && mount --bind "$file" "$root$file"; done
    mount --bind "$work" "$root/srv"
    shift 2
    unset SSL_CERT_FILE # the server is asked by HTTP
    exec chroot "$root" env -C /srv HOME=/srv PYTHONPATH=/opt/harbor python3 /opt/harbor/bin/harbor "$@"' harbor "$at/root" "$PWD")
fi
"${inside[@]}" run --yes --path task --env e2b --agent oracle --jobs-dir jobs --job-name oracle
"${inside[@]}" run --yes --path task --env e2b --agent nop --jobs-dir jobs --job-name nop
reward() { cat jobs/"$1"/*/verifier/reward.txt; }
[[ $(reward oracle) == 1 && $(reward nop) == 0 ]] || { echo "rewards: oracle $(reward oracle), nop $(reward nop)"; exit 1; }
