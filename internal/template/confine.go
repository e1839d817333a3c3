package template

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// childEnv is the environment of child programs on the host: fixed settings and the
// host's proxy variables.
func childEnv() []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LC_ALL=C.UTF-8", "HOME=/root", "DEBIAN_FRONTEND=noninteractive",
	}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(strings.ToLower(v), "=")
		if slices.Contains([]string{"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"}, name) {
			env = append(env, v)
		}
	}
	return env
}

// dieWithParent kills a child when the thread that started it ends; see runLocked.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// confined is dieWithParent with own namespaces: the child's mounts and leftover
// processes end with it.
func confined() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Pdeathsig:  syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
	}
}

// killWait bounds the wait for a killed child's output.
const killWait = 5 * time.Second

// runLocked runs cmd and returns its output. It locks its thread until the child ends,
// because Pdeathsig refers to the parent thread, and Go ends threads.
func runLocked(cmd *exec.Cmd) (string, error) {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = killWait
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	return out.String(), err
}

// enter makes mounts private, mounts the new process namespace's /proc and executes the
// program in "$@".
const enter = `set -e; umask 022
mount --make-rprivate /
mount -t proc proc /proc
exec "$@"`

// enterRoot does the same inside the tree "$1". It also mounts a /dev there, and hides
// the host's tree.
const enterRoot = `set -e; umask 022
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mount -t proc -o nosuid,nodev,noexec proc ./proc
mount -t tmpfs -o mode=755,size=1m tmpfs ./dev
for n in null zero full random urandom tty; do : >dev/$n; mount --bind /dev/$n dev/$n; done
ln -s /proc/self/fd dev/fd
mkdir dev/shm
exec chroot . "$@"`

// A confinedRun is a program to run in its own namespaces. Its output goes to Log and,
// line by line, to Line.
type confinedRun struct {
	Root string   // chroot there first; empty: the host's tree
	Env  []string // added to childEnv
	Log  io.Writer
	Line func(string)
}

// RunError is the failure of a build's program.
type RunError struct {
	Program string
	Err     error
	Output  string // the last lines of its output
}

func (e *RunError) Error() string { return fmt.Sprintf("run %s: %v: %s", e.Program, e.Err, e.Output) }

// Unwrap returns the underlying error.
func (e *RunError) Unwrap() error { return e.Err }

// maxLine bounds a line of a child's output; a longer line is split.
const maxLine = 64 << 10

// run runs the program and waits for all its processes. The error ends with the last
// lines of output.
func (r confinedRun) run(ctx context.Context, args ...string) error {
	script := []string{"-c", enter, "sh"}
	if r.Root != "" {
		script = []string{"-c", enterRoot, "sh", r.Root}
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", append(script, args...)...)
	cmd.Env = append(childEnv(), r.Env...)
	cmd.SysProcAttr = confined()
	cmd.WaitDelay = killWait
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("run %s: %w", args[0], err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, in

	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		in.Close() // the child has its own copy
		if err == nil {
			err = cmd.Wait()
		}
		done <- err
	}()
	tail := r.read(out)
	if err := <-done; err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &RunError{args[0], err, strings.Join(tail, "\n")}
	}
	return nil
}

// read passes output on until no process holds the pipe.
func (r confinedRun) read(out io.Reader) (tail []string) {
	lines := bufio.NewReaderSize(out, maxLine)
	for {
		text, _, err := lines.ReadLine()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				tail = append(tail, err.Error())
			}
			return tail
		}
		line := string(text)
		if r.Log != nil {
			fmt.Fprintln(r.Log, line)
		}
		if tail = append(tail, line); len(tail) > 15 {
			tail = tail[1:]
		}
		if r.Line != nil {
			r.Line(line)
		}
	}
}
