package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

const (
	maxTemplateFile = 16 << 20
	// readyFirst and readyLast are the pauses between tries of the Template's
	// ready command.
	readyFirst = 20 * time.Millisecond
	readyLast  = time.Second
	// readyTail is how much of a failed command's output is reported, in bytes.
	readyTail = 300
)

// LoadTemplate reads the Template's description from the image. It is called before
// any process of the user runs.
func (g *Guest) LoadTemplate() {
	keepPath(profile)
	t := readTemplate(guest.TemplateFile)
	env := map[string]string{}
	maps.Copy(env, t.Env)
	maps.Copy(env, readEnvironment("/etc/environment"))
	if env["LANG"] == "C.UTF-8" { // LC_CTYPE has the same effect and costs less, see environment
		delete(env, "LANG")
	}
	t.Env = env
	g.mu.Lock()
	defer g.mu.Unlock()
	g.template = t
}

func readTemplate(path string) (t guest.Template) {
	f, err := os.Open(path)
	if err != nil {
		return guest.Template{}
	}
	defer f.Close()
	if json.NewDecoder(io.LimitReader(f, maxTemplateFile)).Decode(&t) != nil {
		return guest.Template{}
	}
	return t
}

// readEnvironment reads a file as pam_env does: NAME=VALUE lines, with or without
// quotes and "export".
func readEnvironment(path string) map[string]string {
	env := map[string]string{}
	f, err := os.Open(path)
	if err != nil {
		return env
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxTemplateFile))
	for lines.Scan() {
		line := strings.TrimPrefix(strings.TrimSpace(lines.Text()), "export ")
		name, value, ok := strings.Cut(line, "=")
		if !ok || name == "" || strings.ContainsAny(name, "# \t\x00") || strings.ContainsRune(value, 0) {
			continue
		}
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		env[name] = value
	}
	return env
}

// templateEnv is the environment that the image gives to Processes.
func (g *Guest) templateEnv() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.template.Env
}

// begin starts the Template's start command, once per Boot. The command runs in the
// background.
func (g *Guest) begin() error {
	g.mu.Lock()
	command, begun := g.template.Start, g.begun
	g.begun = true
	g.mu.Unlock()
	if begun || command == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(guest.StartLog), 0o755); err != nil {
		return invalid("the template has no folder for the log of its start command: %v", err)
	}
	log, err := unix.Open(guest.StartLog, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return invalid("the log of the template's start command cannot be opened: %v", err)
	}
	defer unix.Close(log)
	child, err := g.startShell(command, log)
	if err != nil {
		return invalid("the template's start command cannot be run: %v", err)
	}
	g.mu.Lock()
	g.startChild = child
	g.mu.Unlock()
	return nil
}

// startShell runs a shell command as the default user, with its output to a
// descriptor.
func (g *Guest) startShell(command string, out int) (*Child, error) {
	c, err := g.Command([]string{"/bin/sh", "-c", command}, nil, "", "")
	if err != nil {
		return nil, err
	}
	null, err := noInput()
	if err != nil {
		return nil, err
	}
	return g.Start(c, []int{null, out, out}, false)
}

// Waits reports whether the caller of Bind must wait for Ready.
func (g *Guest) Waits() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.template.Ready != ""
}

// Ready waits until the Template's ready command succeeds. It fails when the
// start command does, and when ctx ends.
func (g *Guest) Ready(ctx context.Context) error {
	g.mu.Lock()
	command, started := g.template.Ready, g.startChild
	g.mu.Unlock()
	if command == "" {
		return nil
	}
	for pause := readyFirst; ; pause = min(2*pause, readyLast) {
		said, err := g.try(ctx, command)
		if err == nil {
			return nil
		}
		select {
		case status, ok := <-started.exited():
			if ok && status != 0 {
				return invalid("the template's start command ended with %d: %s", status, lastOf(guest.StartLog))
			}
			started = nil // its background processes may still become ready
		case <-ctx.Done():
			return invalid("the template's ready command did not succeed in time: %v: %s", err, said)
		case <-time.After(pause):
		}
	}
}

// exited yields the exit code of a Child; nil blocks for ever.
func (c *Child) exited() <-chan int {
	if c == nil {
		return nil
	}
	ended := make(chan int, 1)
	select {
	case status := <-c.Exited:
		ended <- status.ExitStatus()
	default:
		return nil
	}
	return ended
}

// try runs a command to its end, and returns the end of its output if it failed.
func (g *Guest) try(ctx context.Context, command string) (said string, err error) {
	out, err := os.CreateTemp("", ".ready-*")
	if err != nil {
		return "", err
	}
	defer out.Close()
	defer os.Remove(out.Name())
	child, err := g.startShell(command, int(out.Fd()))
	if err != nil {
		return "", err
	}
	select {
	case status := <-child.Exited:
		if status.ExitStatus() == 0 {
			return "", nil
		}
		return lastOf(out.Name()), fmt.Errorf("exit code %d", status.ExitStatus())
	case <-ctx.Done():
		_ = unix.Kill(-child.PID, unix.SIGKILL)
		<-child.Exited
		return lastOf(out.Name()), errors.New("it kept running")
	}
}

// lastOf returns the end of a file.
func lastOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > readyTail {
		_, _ = f.Seek(-readyTail, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, readyTail))
	return strings.TrimSpace(string(text))
}
