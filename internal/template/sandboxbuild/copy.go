package sandboxbuild

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var (
	ownerPattern = regexp.MustCompile(`^[a-z0-9_][a-z0-9_-]{0,31}(:[a-z0-9_][a-z0-9_-]{0,31})?$`)
	modePattern  = regexp.MustCompile(`^[0-7]{3,4}$`)
)

// checkCopy returns an error for an invalid COPY.
func (s Step) checkCopy() error {
	switch {
	case sandbox.CheckUploadHash(s.Files) != nil:
		return errors.New("COPY needs filesHash, 64 lower-case hex digits")
	case s.Args[1] == "":
		return errors.New("the destination of COPY is empty")
	case path.IsAbs(s.Args[0]) || !fs.ValidPath(path.Clean(s.Args[0])):
		return fmt.Errorf("the source of COPY must be a path within its folder: %.80q is not", s.Args[0])
	case s.arg(2) != "" && !ownerPattern.MatchString(s.arg(2)):
		return fmt.Errorf("%.80q is not USER or USER:GROUP", s.arg(2))
	case s.arg(3) != "" && !modePattern.MatchString(s.arg(3)):
		return fmt.Errorf("%.20q is not an octal mode", s.arg(3))
	}
	return nil
}

// arg returns an argument, or "".
func (s Step) arg(i int) string {
	if i < len(s.Args) {
		return s.Args[i]
	}
	return ""
}

// sent is the path of an upload in the Sandbox until it is unpacked.
const sent = "/var/tmp/.template-files"

// unpack copies "$2" of the archive "$1" to "$3", with the owner "$4" and the mode "$5"
// if set. A folder's content goes into the folder "$3"; a file becomes "$3", or goes into
// it.
const unpack = `archive=$1 src=$2 dest=$3 owner=$4 mode=$5
tmp=$(mktemp -d /var/tmp/.template-XXXXXX) || exit
trap 'rm -rf -- "$tmp" "$archive"' EXIT
tar --no-same-owner -xf "$archive" -C "$tmp" && rm -f -- "$archive" && cd "$tmp" || exit
if [ -e "$src" ] || [ -L "$src" ]; then
	all=("$src")
else
	shopt -s nullglob globstar dotglob
	IFS=
	all=($src)
fi
if [ ${#all[@]} = 0 ]; then
	echo "what was sent holds no $src" >&2
	exit 1
fi
[ ${#all[@]} = 1 ] || dest=${dest%/}/
chown -hR -- "$owner" . || exit
[ -z "$mode" ] || find . -mindepth 1 ! -type l -exec chmod -- "$mode" {} + || exit
make() {
	[ -d "$1" ] && return
	make "$(dirname -- "$1")" && mkdir -- "$1" && chown -- "$owner" "$1"
}
for each in "${all[@]}"; do
	if [ -d "$each" ] && [ ! -L "$each" ]; then
		make "${dest%/}/" && find "$each" -mindepth 1 -maxdepth 1 -exec cp -a -t "$dest" -- {} + || exit
	elif [ "${dest%/}" != "$dest" ] || [ -d "$dest" ]; then
		make "${dest%/}/" && cp -a -t "$dest" -- "$each" || exit
	else
		make "$(dirname -- "$dest")" && cp -aT -- "$each" "$dest" || exit
	fi
done`

// filesOf returns the archive of a COPY: packed from the build context of a Dockerfile, or
// as the client uploaded it.
func (r *run) filesOf(ctx context.Context, s Step) (archive io.ReadCloser, bytes int64, err error) {
	if files := r.copies[s.Files]; files != nil {
		return pack(files)
	}
	archive, bytes, err = r.cfg.Uploads.OpenUpload(ctx, r.b.record.Tenant, s.Files)
	if errors.Is(err, sandbox.NotFound) {
		err = sandbox.Errorf(sandbox.Invalid, "the files of this step were not sent, or have expired: build it again")
	}
	return archive, bytes, err
}

// copyFiles executes a COPY.
func (r *run) copyFiles(ctx context.Context, s Step) error {
	archive, size, err := r.filesOf(ctx, s)
	if err != nil {
		return err
	}
	defer archive.Close()
	if _, err := r.guest.WriteFile(ctx, sent, archive, size); err != nil {
		return err
	}
	dest := r.expand(s, s.Args[1])
	folder := strings.HasSuffix(dest, "/") || path.Base(dest) == "." || path.Base(dest) == ".."
	if !path.IsAbs(dest) {
		dest = path.Join(r.cwd, dest)
	}
	if dest = path.Clean(dest); folder && dest != "/" {
		dest += "/"
	}
	owner := cmp.Or(s.arg(2), r.user)
	if !strings.Contains(owner, ":") {
		owner += ":" // and the owner's group
	}
	return r.exec(ctx, "COPY", "root", "/", []string{"/bin/bash", "-c", unpack, "bash", sent, path.Clean(s.Args[0]), dest, owner, s.arg(3)})
}
