package mcpgateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Name is the program's name when it runs as this command.
const Name = "mcp-gateway"

// Port is the port of the gateway.
const Port = 50005

// Paths of a Template's servers, and of the gateway's token and log.
const (
	folder    = "/etc/mcp-gateway"
	tokenFile = folder + "/.token"
	logFile   = "/var/log/mcp-gateway.log"
	reposDir  = "/opt/mcp-gateway"
	// serveWord is the argument of the background process.
	serveWord = "serve-in-background"
	maxToken  = 4096
)

const usage = `mcp-gateway --config JSON   starts MCP servers of this template behind http://localhost:50005/mcp;
                            JSON has the configuration of each by its name, and the variable
                            GATEWAY_ACCESS_TOKEN the token that clients must have
mcp-gateway pull NAME...    installs servers that this template knows
`

var here = catalogue{dir: folder + "/servers", repos: reposDir}

// Main is the command. It returns the exit code.
func Main(args []string) int {
	err := run(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
	case err != nil:
		fmt.Fprintln(os.Stderr, "mcp-gateway:", err)
		return 1
	}
	return 0
}

func run(args []string) error {
	if len(args) > 0 && args[0] == serveWord {
		return serve()
	}
	if len(args) > 1 && args[0] == "pull" {
		return pull(here, args[1:])
	}
	flags := flag.NewFlagSet(Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	config := flags.String("config", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *config == "" || flags.NArg() > 0 {
		return errors.New("it takes --config JSON, or pull and names: see --help")
	}
	token := os.Getenv("GATEWAY_ACCESS_TOKEN")
	if token == "" || len(token) > maxToken {
		return errors.New("the variable GATEWAY_ACCESS_TOKEN must contain the token that clients send")
	}
	return begin(*config, token)
}

// order is the input of the background process.
type order struct{ Config, Token string }

// begin starts the background process, and returns once it serves or has failed.
func begin(config, token string) error {
	servers, err := here.servers(config)
	if err != nil {
		return err
	}
	for _, s := range servers {
		if err := fetch(s); err != nil {
			return fmt.Errorf("server %q: %w", s.name, err)
		}
	}
	told, err := json.Marshal(order{Config: config, Token: token})
	if err != nil {
		return err
	}
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	answer, answers, err := os.Pipe()
	if err != nil {
		return err
	}
	defer answer.Close()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, serveWord)
	cmd.Args[0] = Name // selects this command
	cmd.Env = without(os.Environ(), "GATEWAY_ACCESS_TOKEN")
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = bytes.NewReader(told), out, out, []*os.File{answers}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	answers.Close()
	if err != nil {
		return err
	}
	said, err := io.ReadAll(answer)
	switch {
	case err != nil:
		return err
	case string(said) == "ready":
		return nil
	case len(said) == 0:
		return fmt.Errorf("the gateway has ended: %s says why", logFile)
	}
	return errors.New(string(said))
}

// without returns an environment without one variable.
func without(env []string, name string) (rest []string) {
	for _, v := range env {
		if !strings.HasPrefix(v, name+"=") {
			rest = append(rest, v)
		}
	}
	return rest
}

// serve is the background process. It writes an error of its start to descriptor 3.
func serve() error {
	answer := os.NewFile(3, "answer")
	syscall.CloseOnExec(3)
	l, h, err := prepare(os.Stdin)
	if err != nil {
		_, _ = answer.WriteString(err.Error()) // the caller may be gone
		return err
	}
	_, _ = answer.WriteString("ready")
	answer.Close()
	const patience = 30 * time.Second
	s := &http.Server{Handler: h, ReadHeaderTimeout: patience, ErrorLog: log.Default()}
	return s.Serve(l)
}

func prepare(in io.Reader) (net.Listener, http.Handler, error) {
	var o order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return nil, nil, err
	}
	servers, err := here.servers(o.Config)
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp4", fmt.Sprintf(":%d", Port))
	if err != nil {
		return nil, nil, fmt.Errorf("port %d is in use: %w", Port, err)
	}
	g, err := open(context.Background(), servers)
	if err == nil {
		err = writeToken(o.Token)
	}
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, handler(g, o.Token), nil
}

// writeToken writes the token to the file where the SDKs look for it.
func writeToken(token string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.Remove(tokenFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(tokenFile, []byte(token), 0o600)
}

// pull installs servers of the catalogue.
func pull(c catalogue, names []string) error {
	for _, name := range names {
		d, err := c.definition(name)
		if err != nil {
			return fmt.Errorf("server %.80q: %w", name, err)
		}
		if d.Install == "" {
			continue
		}
		words := shell(d.Install)
		if err := output(d.Cwd, words[0], words[1:]...); err != nil {
			return fmt.Errorf("server %q cannot be installed: %w", name, err)
		}
	}
	return nil
}

// fetch fetches a server's folder, complete or not at all.
func fetch(s server) error {
	if s.fetch == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o755); err != nil {
		return err
	}
	aside, err := os.MkdirTemp(filepath.Dir(s.dir), ".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside) // fails after the rename
	if err := s.fetch(aside); err != nil {
		return err
	}
	return os.Rename(aside, s.dir)
}

// output runs a program; its error includes the end of the program's output.
func output(dir, name string, args ...string) error {
	const most = 1000
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_TERMINAL_PROMPT=0")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out[max(0, len(out)-most):]))
}
