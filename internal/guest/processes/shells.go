package processes

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// shellFolder holds the state of shell sessions, in a folder per user.
const shellFolder = "/run/cloud-sandbox/shells"

// session is run by bash for a command of a shell session. Its arguments are the
// file of the session, the command, the folder to run it in if it is not the
// session's, and variables. It reads the state from the file and writes the new
// state beside it. The Guest then takes the new state over if it is complete.
//
// The mark by which processes are found again must be the mark of this command, not of
// the command that saved the state.
const session = `set -- "$CLOUD_SANDBOX_RUN" "$@"
[ -r "$2" ] && . "$2" 2>/dev/null
export CLOUD_SANDBOX_RUN="$1"
[ -n "$4" ] && cd -- "$4"
__cs_state=$2 __cs_command=$3 __cs_saved=
shift 4
for __cs_pair in "$@"; do export "$__cs_pair"; done
set --
__cs_save() {
	[ -n "$__cs_saved" ] && return
	set +eux
	__cs_saved=1
	{ declare -p; declare -f; umask -p; printf 'cd -- %q\n%s' "$PWD" '` + sessionEnd + `'; } >"$__cs_state.new" 2>/dev/null
}
trap __cs_save EXIT
eval -- "$__cs_command"
__cs_status=$?
__cs_save
exit $__cs_status`

// sessionEnd is the last line of a complete state.
const sessionEnd = "# whole"

// shells are the shell sessions of a Sandbox.
type shells struct {
	mu   sync.Mutex
	busy map[string]*Process // by the session's file
}

var errNoSession = errors.New("the shell session has no place for its state")

func stateFile(u server.User, name string) string {
	return filepath.Join(shellFolder, strconv.Itoa(int(u.UID)), name)
}

// args returns the command line for a command of a session. The first command of a
// session starts a login shell.
func (s *shells) args(u server.User, spec Spec) ([]string, error) {
	file := stateFile(u, spec.Shell)
	if err := makeFolder(filepath.Dir(file), u); err != nil {
		return nil, err
	}
	args := []string{"bash"}
	if _, err := os.Lstat(file); err != nil {
		args = append(args, "-l")
	}
	args = append(args, "-c", session, "bash", file, spec.Line, spec.Cwd)
	for k, v := range spec.Env {
		args = append(args, k+"="+v)
	}
	return args, nil
}

func makeFolder(dir string, u server.User) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("%w: %w", errNoSession, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		return fmt.Errorf("%w: %w", errNoSession, err)
	}
	return os.Lchown(dir, int(u.UID), int(u.GID))
}

// busyError says which Process uses a session.
type busyError struct{ shell, id string }

func (e *busyError) Error() string {
	return fmt.Sprintf("the shell %q is busy with another command: wait for it or end it, or use another shell", e.shell)
}

// take gives a session to a Process. release ends that, and takes over the new
// state if it is complete.
func (s *shells) take(p *Process) (release func(ran bool), err error) {
	file := stateFile(p.Command.User, p.Shell)
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.busy[file]; other != nil {
		return nil, &busyError{p.Shell, other.ID}
	}
	s.busy[file] = p
	return func(ran bool) {
		if ran {
			keepState(file)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, file)
	}, nil
}

// keepState makes the state that a command left the state of the session.
func keepState(file string) {
	left := file + ".new"
	f, err := os.OpenFile(left, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	end := make([]byte, len(sessionEnd))
	info, err := f.Stat()
	if err != nil || info.Size() < int64(len(end)) {
		return
	}
	if _, err := f.ReadAt(end, info.Size()-int64(len(end))); err != nil || !bytes.Equal(end, []byte(sessionEnd)) {
		_ = os.Remove(left)
		return
	}
	_ = os.Rename(left, file)
}
