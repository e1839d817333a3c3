#!/usr/bin/env bash
# Packs build results: "guest DIR IMAGE" makes the guest's image, "payload STAGE
# FILES" compresses the parts that are embedded. Nothing is redone for an
# unchanged input, and equal inputs give equal outputs.
set -euo pipefail

guest() {
  local dir=$1 image=$2 stamp
  stamp=$(sha256sum "$dir/guest" | cut -d' ' -f1)
  [[ -e $image && $(cat "$image.of" 2>/dev/null) == "$stamp" ]] && return
  chmod 755 "$dir" "$dir/guest" # whatever the umask
  rm -f "$image.new"
  # No xattrs and no inlined tails: gVisor must map whole blocks.
  mkfs.erofs -x-1 -Enoinline_data -T0 --all-root -U 00000000-0000-0000-0000-000000000000 --quiet "$image.new" "$dir" >/dev/null
  mv "$image.new" "$image"
  echo "$stamp" >"$image.of"
}

payload() {
  local stage=$1 files=$2 name stamp
  for name in gvisor_sentry link guest.erofs; do
    stamp=$(sha256sum "$stage/$name" | cut -d' ' -f1)
    # Builds for several architectures take turns here.
    [[ -e $files/$name.zst && $(cat "$files/$name.of" 2>/dev/null) == "$stamp" ]] && continue
    zstd -q -6 -f -o "$files/$name.zst" "$stage/$name"
    echo "$stamp" >"$files/$name.of"
  done
}

"$@"
