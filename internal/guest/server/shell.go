package server

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// AheadLife is how long after Bind a program that was started ahead waits to be
	// used: from Bind on it uses the owner's memory.
	AheadLife = time.Minute
	// shellQuiet is how long no program may begin or end before the next bash is
	// started: it must not compete with programs that a client waits for.
	shellQuiet = 2 * time.Second
	// shellRoom bounds the code that a waiting bash can take, in bytes, including
	// the final zero byte.
	shellRoom = 8 << 10
	// maxStartup bounds the startup file of that bash, in bytes: a pipe holds 64 KiB, and
	// its writer does not wait for bash to read it.
	maxStartup = 48 << 10
	// triedCode shows by its exit code whether a bash runs code that it was given
	// late.
	triedCode, triedExit = "exit $TRIED_CODE", 41
)

// unfilled is the placeholder for the code: a bash that ran it would fail.
var unfilled = func() string {
	begin := "exit 125 # waits for a command"
	return begin + strings.Repeat(" ", shellRoom-1-len(begin))
}()

// shells keeps one bash that was started before its command is known. Its zero
// value is ready.
type shells struct {
	mu       sync.Mutex
	waiting  *waitingShell // nil: none
	starting bool
	tried    bool        // one was used, to test whether this works here
	unfit    bool        // the test failed
	next     *time.Timer // starts the next one; nil: not requested
}

// waitingShell is a bash that was started as "bash -c -- CODE". It reads its
// startup file (BASH_ENV), a pipe to which nothing was written yet. CODE is on its
// stack until bash evaluates it, after that file.
type waitingShell struct {
	command Command // as it was started, but for BASH_ENV
	piped   *Piped
	startup *os.File // our end of that pipe
	code    uintptr  // address of CODE
	program fileState
	folder  fileState
}

// fileState is equal for a path as long as the path names the same, unchanged file.
type fileState struct {
	dev, ino       uint64
	mode, uid, gid uint32
	size           int64
	modified       unix.Timespec
}

func stateOf(path string) (fileState, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileState{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	s := fileState{dev: st.Dev, ino: st.Ino, mode: st.Mode, uid: st.Uid, gid: st.Gid}
	if st.Mode&unix.S_IFMT == unix.S_IFREG { // the content of a folder does not matter
		s.size, s.modified = st.Size, st.Mtim
	}
	return s, nil
}

// shellCode returns the code of a command that a waiting bash can run.
func shellCode(c Command) (code string, ok bool) {
	if len(c.Args) != 4 || c.Args[0] != "bash" || c.Args[1] != "-c" || c.Args[2] != "--" {
		return "", false
	}
	return c.Args[3], true
}

// PrepareShell starts a bash that waits for a command, as the owner of the Boot
// would run it, and returns once it is started. Nothing happens when one waits
// already, or when this does not work in this Template.
func (g *Guest) PrepareShell() {
	s := &g.shells
	s.mu.Lock()
	if s.waiting != nil || s.starting || s.unfit {
		s.mu.Unlock()
		return
	}
	s.starting = true
	tried := s.tried
	s.mu.Unlock()
	works := tried || g.tryShell()
	var w *waitingShell
	if works {
		w, _ = g.startWaiting() // on failure, commands start a bash of their own
	}
	_, bound := g.Owner()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting, s.tried, s.unfit, s.waiting = false, true, !works, w
	if bound {
		s.expire()
	}
}

// tryShell reports whether a waiting bash runs the code that it is given.
func (g *Guest) tryShell() bool {
	w, err := g.startWaiting()
	if err != nil {
		return false
	}
	c := w.command
	c.Args = []string{"bash", "-c", "--", triedCode}
	c.Env = append(slices.Clone(c.Env), fmt.Sprintf("TRIED_CODE=%d", triedExit)) // by its startup file
	p := w.become(c, triedCode, false)
	if p == nil {
		w.end()
		return false
	}
	defer p.close()
	defer p.Release()
	late := time.NewTimer(AheadLife)
	defer late.Stop()
	select {
	case status := <-p.Exited():
		return status.ExitStatus() == triedExit
	case <-late.C:
		p.Kill()
		return false
	}
}

// expire ends the waiting bash when it was not used within AheadLife. The caller
// holds s.mu.
func (s *shells) expire() {
	if w := s.waiting; w != nil {
		time.AfterFunc(AheadLife, func() { s.drop(w) })
	}
}

// drop ends w if it still waits.
func (s *shells) drop(w *waitingShell) {
	s.mu.Lock()
	waits := s.waiting == w
	if waits {
		s.waiting = nil
	}
	s.mu.Unlock()
	if waits {
		w.end()
	}
}

// take removes and returns the waiting bash; nil when no bash waits.
func (s *shells) take() *waitingShell {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting
	s.waiting = nil
	return w
}

// used schedules the next bash, after shellQuiet.
func (s *shells) used(g *Guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil && !s.unfit {
		s.next = time.AfterFunc(shellQuiet, func() {
			s.mu.Lock()
			s.next = nil
			s.mu.Unlock()
			if _, restored := savedAt(); !restored { // until Bind, nothing of the owner's may start
				g.PrepareShell()
			}
		})
	}
}

// disturbed postpones the next bash, because a program begins or ends.
func (s *shells) disturbed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil && s.next.Stop() {
		s.next.Reset(shellQuiet)
	}
}

// shellOwner is the likely owner of the next shell command.
func (g *Guest) shellOwner() Owner {
	if owner, bound := g.Owner(); bound {
		return owner
	}
	return Owner{User: defaultUser, Cwd: defaultCwd}
}

// startWaiting starts a waiting bash.
func (g *Guest) startWaiting() (_ *waitingShell, err error) {
	c, err := g.resolve(g.shellOwner(), []string{"bash", "-c", "--", unfilled}, nil, "", "")
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(c.Env, shellStartup.MatchString) {
		return nil, errors.New("the environment changes how bash starts")
	}
	w := &waitingShell{command: c}
	if w.program, err = stateOf(c.Path); err != nil {
		return nil, err
	}
	if w.folder, err = stateOf(c.Cwd); err != nil {
		return nil, err
	}
	var startup int
	// A pipe of the user's own, so that bash may open it by its path.
	if err := As(c.User, func() (err error) {
		w.startup, startup, err = InputPipe()
		return err
	}); err != nil {
		return nil, err
	}
	defer unix.Close(startup)
	defer func() {
		if err != nil {
			w.startup.Close()
		}
	}()
	null, err := noInput()
	if err != nil {
		return nil, err
	}
	waits := c
	waits.Env = append(slices.Clone(c.Env), "BASH_ENV=/proc/self/fd/3")
	if w.piped, err = g.startPiped(waits, true, func(theirs []int) []int {
		return []int{null, theirs[1], theirs[2], startup, theirs[0]}
	}); err != nil {
		return nil, err
	}
	if w.code, err = w.find(); err != nil {
		w.end()
		return nil, err
	}
	return w, nil
}

// find returns the address of the code: on the stack, with arguments and
// environment.
func (w *waitingShell) find() (uintptr, error) {
	if err := w.awaitStack(); err != nil {
		return 0, err
	}
	maps, err := readSmall("/proc/" + strconv.Itoa(w.piped.PID()) + "/maps")
	if err != nil {
		return 0, err
	}
	stack := stackLine.FindSubmatch(maps)
	if stack == nil {
		return 0, errors.New("find the stack of bash: it has none")
	}
	begin, err1 := strconv.ParseUint(string(stack[1]), 16, 64)
	end, err2 := strconv.ParseUint(string(stack[2]), 16, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, fmt.Errorf("find the stack of bash: %w", err)
	}
	const more = 8 << 10 // data that the kernel puts there too
	size := uint64(shellRoom + more)
	for _, text := range w.command.Env {
		size += uint64(len(text)) + 1
	}
	text := make([]byte, min(size, end-begin))
	at := uintptr(end) - uintptr(len(text))
	if _, err := unix.ProcessVMReadv(w.piped.PID(), localTo(text), remoteAt(at, len(text)), 0); err != nil {
		return 0, fmt.Errorf("read the stack of bash: %w", err)
	}
	i := bytes.Index(text, []byte(unfilled))
	if i < 0 {
		return 0, errors.New("find the code of bash: it is not on its stack")
	}
	return at + uintptr(i), nil
}

// awaitStack waits until the kernel knows where the arguments and environment of
// the new program are. Linux finds that by the zero bytes between them, after
// execve has succeeded for us. gVisor has done it before.
func (w *waitingShell) awaitStack() error {
	const pause, tries = time.Millisecond, 1000
	for range tries {
		if b, err := readSmall("/proc/" + strconv.Itoa(w.piped.PID()) + "/environ"); err != nil || len(b) > 0 {
			return err
		}
		time.Sleep(pause)
	}
	return errors.New("await the stack of bash: it has none")
}

var stackLine = regexp.MustCompile(`(?m)^([0-9a-f]+)-([0-9a-f]+) .*\[stack\]$`)

func localTo(b []byte) []unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return []unix.Iovec{v}
}

func remoteAt(at uintptr, n int) []unix.RemoteIovec { return []unix.RemoteIovec{{Base: at, Len: n}} }

// gone reports whether the bash has ended, for any reason.
func (w *waitingShell) gone() bool {
	select {
	case <-w.piped.Exited():
		return true
	default:
		return false
	}
}

// end ends the bash.
func (w *waitingShell) end() {
	if !w.gone() {
		_ = unix.Kill(-w.piped.PID(), unix.SIGKILL)
		<-w.piped.Exited()
	}
	w.piped.Release()
	w.piped.close()
	w.startup.Close()
}

// become turns the bash into the program of c, with or without input; nil when it
// cannot.
func (w *waitingShell) become(c Command, code string, input bool) *Piped {
	if w.gone() || len(code) >= shellRoom || !w.command.sameProgram(c) {
		return nil
	}
	program, err := stateOf(c.Path)
	if err != nil || program != w.program {
		return nil
	}
	folder, err := stateOf(c.Cwd)
	if err != nil {
		return nil
	}
	move := c.Cwd != w.command.Cwd || folder != w.folder
	if move && !mayEnter(c.User, c.Cwd) {
		return nil
	}
	startup, ok := startupOf(w.command.Env, c, code, move, input)
	if !ok || len(startup) > maxStartup {
		return nil
	}
	pid := w.piped.PID()
	text := make([]byte, len(unfilled)) // without the zero byte behind it, which is kept
	if n, err := unix.ProcessVMReadv(pid, localTo(text), remoteAt(w.code, len(text)), 0); err != nil || n != len(text) || string(text) != unfilled {
		return nil // it executes another program now
	}
	clear(text)
	copy(text, code)
	if n, err := unix.ProcessVMWritev(pid, localTo(text), remoteAt(w.code, len(text)), 0); err != nil || n != len(text) {
		return nil
	}
	_ = unix.Kill(pid, unix.SIGCONT) // the user may have stopped it
	// The user's programs may fill the pipe, which must not block us.
	if err := w.startup.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return nil
	}
	if _, err := w.startup.WriteString(startup); err != nil {
		return nil
	}
	w.startup.Close()
	p := w.piped
	p.command = c
	if !input {
		p.Stdin.Close()
		p.Stdin = nil
	}
	return p
}

// sameProgram reports whether two commands are the same program of the same user. Their
// arguments may differ.
func (c Command) sameProgram(other Command) bool {
	return c.Path == other.Path && c.User.UID == other.User.UID && c.User.GID == other.User.GID && slices.Equal(c.User.Groups, other.User.Groups)
}

// mayEnter reports whether a user's program can be started in a folder.
func mayEnter(u User, folder string) bool {
	return As(u, func() error {
		var st unix.Stat_t
		return unix.Stat(folder+"/.", &st)
	}) == nil
}

// startupOf returns the startup file that makes a waiting bash equal to a bash that
// c starts. ok is false when a startup file cannot do that.
func startupOf(before []string, c Command, code string, move, input bool) (text string, ok bool) {
	set, gone := EnvChanges(before, c.Env)
	var b strings.Builder
	if input {
		b.WriteString("exec 0<&4 3<&- 4<&-\n")
	} else {
		b.WriteString("exec 3<&- 4<&-\n")
	}
	if move { // it has been nowhere else before
		fmt.Fprintf(&b, "cd -P -- %s || exit 125\nunset -v OLDPWD\ndeclare -x OLDPWD\n", shellQuote(c.Cwd))
	}
	b.WriteString("unset -v BASH_ENV")
	for _, name := range gone {
		if shellOwn(name) {
			return "", false
		}
		b.WriteString(" " + name)
	}
	b.WriteString("\n")
	for i := 0; i < len(set); i += 2 {
		if shellOwn(set[i]) {
			return "", false
		}
		fmt.Fprintf(&b, "export -- %s=%s\n", set[i], shellQuote(set[i+1]))
	}
	fmt.Fprintf(&b, "BASH_EXECUTION_STRING=%s\n", shellQuote(code))
	// A copy of the Sandbox has copies of its generator and of ours, but not of the
	// kernel's.
	var seed [4]byte
	_, _ = rand.Read(seed[:]) // it does not fail
	fmt.Fprintf(&b, "RANDOM=%d SECONDS=0\n", binary.NativeEndian.Uint32(seed[:]))
	b.WriteString(": bash\n") // $_ is its name at first
	return b.String(), true
}

func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// shellOwn reports whether a variable has a meaning to bash or to the C library
// when they start, or cannot be a variable of bash.
func shellOwn(name string) bool {
	return !shellName.MatchString(name) || shellSpecial.MatchString(name)
}

// shellStartup matches the environment variables that change how bash starts, or
// how it reads a startup file.
var shellStartup = regexp.MustCompile(`^(BASH_ENV|BASH_FUNC_[^=]*|BASH_XTRACEFD|BASHOPTS|SHELLOPTS|POSIXLY_CORRECT)=`)

var (
	shellName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	shellSpecial = regexp.MustCompile(`^(` +
		// Prefixes.
		`(BASH|COMP_|COPROC|EPOCH|GCONV_|GLIBC_|HIST|LANG|LC_|LD_|MAIL|MALLOC_|POSIX|PROMPT_|READLINE_|RESOLV_|SSH2?_|TERM|TEXTDOMAIN|TZ).*|` +
		`CDPATH|CHILD_MAX|CLOUD_SANDBOX_RUN|COLUMNS|DIRSTACK|EMACS|ENV|E?UID|EXECIGNORE|FCEDIT|FIGNORE|FUNC(NAME|NEST)|GLOB(IGNORE|SORT)|GROUPS|` +
		`HOST(FILE|NAME|TYPE)|IFS|IGNOREEOF|INPUTRC|INSIDE_EMACS|LINE(NO|S)|LOCPATH|MACHTYPE|MAPFILE|NLSPATH|OLDPWD|OPT(ARG|ERR|IND)|OSTYPE|` +
		`PIPESTATUS|PPID|PS[0-4]|PWD|S?RANDOM|REPLY|SECONDS|SHELLOPTS|SHLVL|TIMEFORMAT|TMOUT|TMPDIR|_|` +
		`auto_resume|histchars)$`)
)

// EnvChanges returns the difference between two environments: names and values in
// turn to set, and names to remove.
func EnvChanges(before, after []string) (set, gone []string) {
	had := map[string]string{}
	for _, pair := range before {
		name, value, _ := strings.Cut(pair, "=")
		had[name] = value
	}
	for _, pair := range after {
		name, value, _ := strings.Cut(pair, "=")
		old, there := had[name]
		delete(had, name)
		if !there || old != value {
			set = append(set, name, value)
		}
	}
	for name := range had {
		gone = append(gone, name)
	}
	slices.Sort(gone)
	return set, gone
}

// takeShell returns the waiting bash as the program of c; nil when none fits.
func (g *Guest) takeShell(c Command, code string, input bool) *Piped {
	w := g.shells.take()
	if w == nil {
		return nil
	}
	p := w.become(c, code, input)
	if p == nil {
		w.end()
	}
	return p
}
