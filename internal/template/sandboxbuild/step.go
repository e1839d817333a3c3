package sandboxbuild

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// Step is one instruction, named as in a Dockerfile.
type Step struct {
	Type  string
	Args  []string
	Files string // hash of its uploaded files
	Force bool   // do not use a cached result

	// The remaining fields are of Dockerfile steps, whose Line is not zero, and of
	// internal steps. Their Args are literal: no variable is expanded.
	Line int
	Text string            // the instruction as written
	Argv []string          // of a RUN: the program, instead of Args
	Env  map[string]string // of this RUN only
}

// literal reports whether the arguments are not expanded.
func (s Step) literal() bool { return s.Line > 0 || s.Argv != nil }

// parts returns the fields that identify a Step.
func (s Step) parts() []string {
	parts := append([]string{s.Files}, s.Args...)
	if !s.literal() {
		return parts
	}
	parts = append(append(parts, "argv"), s.Argv...)
	parts = append(parts, "env")
	for _, key := range slices.Sorted(maps.Keys(s.Env)) {
		parts = append(parts, key, s.Env[key])
	}
	return append(parts, "literal")
}

// String returns the Step as a log line.
func (s Step) String() string {
	args := s.Args
	switch {
	case s.Text != "":
		return s.Text
	case s.Type == "RUN" && len(args) > 1: // the second is the user
		args = args[:1]
	case (s.Type == "COPY" || s.Type == "ADD") && len(args) > 2:
		args = args[:2]
	}
	return s.Type + " " + strings.Join(args, " ")
}

// maxStep bounds the time of one step.
const maxStep = time.Hour

var packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{1,127}$`)

var userPattern = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

// check returns Invalid, naming the step, for an invalid Recipe.
func (r *Recipe) check() error {
	size := len(r.Start) + len(r.Ready)
	for i, s := range r.Steps {
		if err := s.check(); err != nil && s.Line > 0 {
			return sandbox.Errorf(sandbox.Invalid, "Dockerfile line %d: %s", s.Line, err)
		} else if err != nil {
			return sandbox.Errorf(sandbox.Invalid, "step %d: %s", i+1, err)
		}
		for _, a := range s.Args {
			size += len(a)
		}
	}
	switch {
	case strings.ContainsRune(r.Start+r.Ready, 0) || len(r.Start) > execution.MaxCommand/2 || len(r.Ready) > execution.MaxCommand/2:
		return sandbox.Errorf(sandbox.Invalid, "startCmd and readyCmd may have at most %d bytes and no zero byte", execution.MaxCommand/2)
	case len(r.Steps) > maxSteps:
		return sandbox.Errorf(sandbox.Invalid, "a template may have at most %d steps", maxSteps)
	case size > maxRecipe:
		return sandbox.Errorf(sandbox.TooLarge, "the steps of a template may have at most %d bytes", maxRecipe)
	}
	return nil
}

// kinds lists the step types, with the number of their arguments.
var kinds = map[string]struct{ least, most int }{
	"RUN":     {1, 2},
	"ENV":     {2, maxSteps},
	"ARG":     {2, maxSteps},
	"COPY":    {2, 4},
	"ADD":     {2, 4},
	"WORKDIR": {1, 1},
	"USER":    {1, 2},
}

// check returns an error for an invalid Step.
func (s Step) check() error {
	kind, known := kinds[s.Type]
	switch {
	case !known:
		return fmt.Errorf("no step %.40q here", s.Type)
	case len(s.Args) < kind.least || len(s.Args) > kind.most:
		return fmt.Errorf("%s takes %d to %d arguments, not %d", s.Type, kind.least, kind.most, len(s.Args))
	case (s.Type == "ENV" || s.Type == "ARG") && len(s.Args)%2 != 0:
		return fmt.Errorf("%s takes names and values in pairs", s.Type)
	case s.Args[0] == "":
		return fmt.Errorf("the first argument of %s is empty", s.Type)
	}
	for _, a := range s.Args {
		if strings.ContainsRune(a, 0) {
			return fmt.Errorf("an argument of %s holds a zero byte", s.Type)
		}
	}
	if s.literal() {
		if err := s.checkLiteral(); err != nil {
			return err
		}
	}
	switch {
	case s.Type == "RUN" && len(s.Args[0]) > execution.MaxCommand:
		return fmt.Errorf("the command has %d bytes; it may have at most %d", len(s.Args[0]), execution.MaxCommand)
	case s.Type == "COPY", s.Type == "ADD":
		return s.checkCopy()
	case s.Type == "USER" && !userPattern.MatchString(s.Args[0]):
		return fmt.Errorf("%.40q is not the name of a user", s.Args[0])
	}
	return nil
}

// step executes one Step.
func (r *run) step(ctx context.Context, s Step) error {
	switch s.Type {
	case "RUN":
		if s.literal() {
			return r.execIn(ctx, "the command", r.user, r.cwd, s.Argv, s.Env)
		}
		user := r.user
		if len(s.Args) > 1 {
			user = cmp.Or(s.Args[1], user)
		}
		return r.exec(ctx, "the command", user, r.cwd, []string{"/bin/bash", "-l", "-c", s.Args[0]})
	case "COPY", "ADD":
		return r.copyFiles(ctx, s)
	case "WORKDIR":
		if err := r.exec(ctx, "WORKDIR", "root", "/", []string{"/bin/sh", "-c", makeWorkdir, "sh", r.user, r.folder(s)}); err != nil {
			return err
		}
	case "USER":
		sudo := len(s.Args) > 1 && s.Args[1] == "true"
		if err := r.exec(ctx, "USER", "root", "/", []string{"/bin/sh", "-c", makeUser, "sh", s.Args[0], fmt.Sprint(sudo)}); err != nil {
			return err
		}
	}
	return r.settle(s)
}

// settle applies a Step's settings to the following steps.
func (r *run) settle(s Step) error {
	switch s.Type {
	case "ENV", "ARG":
		return r.setEnv(s)
	case "WORKDIR":
		r.cwd = r.folder(s)
		r.explicit.Cwd = r.cwd
	case "USER":
		r.user = s.Args[0]
		r.explicit.User = r.user
	}
	return nil
}

// folder returns the path of a WORKDIR.
func (r *run) folder(s Step) string {
	dir := r.expand(s, s.Args[0])
	if !path.IsAbs(dir) {
		dir = path.Join(r.cwd, dir)
	}
	return path.Clean(dir)
}

// exec runs a program in the Sandbox to its end, and logs its output.
func (r *run) exec(ctx context.Context, what, user, cwd string, args []string) error {
	return r.execIn(ctx, what, user, cwd, args, nil)
}

// execIn is exec with additional environment variables.
func (r *run) execIn(ctx context.Context, what, user, cwd string, args []string, more map[string]string) error {
	env := maps.Clone(r.env)
	maps.Copy(env, more)
	print := func(level Level, text string) { r.b.print(level, r.at, r.prefix+" "+text) }
	out, errs := &stream{level: Info, print: print}, &stream{level: Info, print: print}
	end, err := r.guest.Run(ctx, execution.RunRequest{
		Args: args, User: user, Cwd: cwd, Env: env, Timeout: maxStep,
	}, func(e execution.RunEvent) error {
		out.take(e.Stdout)
		errs.take(e.Stderr)
		return nil
	})
	out.flush()
	errs.flush()
	if err != nil {
		return err
	}
	if end.Status != execution.StatusOK || end.ExitCode != 0 {
		if len(errs.last) == 0 {
			errs = out
		}
		return failed(what, end, errs)
	}
	return nil
}

// failed returns the error of a program that did not succeed.
func failed(what string, end execution.RunEnd, said *stream) error {
	how := fmt.Sprintf("ended with exit code %d", end.ExitCode)
	switch {
	case end.Status == execution.StatusTimeout:
		how = "took too long"
	case end.Status != execution.StatusOK:
		how = "failed: " + string(end.Status)
		if end.Message != "" {
			how += ": " + end.Message
		}
	}
	return sandbox.Errorf(sandbox.Invalid, "%s", strings.TrimSuffix(what+" "+how+": "+strings.Join(said.last, "\n"), ": "))
}

// expand replaces $NAME and ${NAME} in an argument by environment variables. It runs
// nothing.
func (r *run) expand(s Step, text string) string {
	if s.literal() {
		return text
	}
	return os.Expand(text, func(name string) string {
		if v, ok := r.env[name]; ok {
			return v
		}
		switch name {
		case "HOME":
			return homeOf(r.user)
		case "USER":
			return r.user
		}
		return r.base.Env[name]
	})
}

func homeOf(user string) string {
	if user == "root" {
		return "/root"
	}
	return "/home/" + user
}

func (r *run) setEnv(s Step) error {
	for i := 0; i < len(s.Args); i += 2 {
		r.env[s.Args[i]] = r.expand(s, s.Args[i+1])
	}
	return sandbox.CheckEnv(r.env)
}

// makeWorkdir creates the folder "$2"; a new folder belongs to "$1".
const makeWorkdir = `[ -d "$2" ] && exit 0
mkdir -p -- "$2" && chown -- "$1": "$2"`

// makeUser creates the user "$1" if missing, with sudo rights if "$2" is true.
const makeUser = `if ! id -u -- "$1" >/dev/null 2>&1; then
	useradd -m -s "$([ -x /bin/bash ] && echo /bin/bash || echo /bin/sh)" -- "$1" || exit
fi
if [ "$2" = true ]; then
	mkdir -p /etc/sudoers.d && echo "$1 ALL=(ALL:ALL) NOPASSWD:ALL" > "/etc/sudoers.d/80-$1" && chmod 0440 "/etc/sudoers.d/80-$1"
fi`
