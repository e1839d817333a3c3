package mcpgateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	maxConfig  = 1 << 20 // bytes
	maxServers = 64
)

// A server is a server of a configuration, ready to be started.
type server struct {
	name    string
	command []string
	env     []string
	dir     string
	// fetch fills dir for the command; nil: nothing to fetch.
	fetch func(dir string) error
}

// definition says how a server of the Template is started: the file NAME.json of
// the catalogue. ${FIELD} in the command, or in a value of the environment, is
// replaced by a field of the server's configuration.
type definition struct {
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"`
	Cwd     string            `json:"cwd"`
	Install string            `json:"install"` // shell command that "pull" runs; empty: nothing to install
	Fields  map[string]string `json:"fields"`  // default values of the fields
}

// repository is the configuration of a server that is fetched from GitHub, in the
// formats of the SDKs of both languages.
type repository struct {
	RunCmd     string            `json:"runCmd"`
	InstallCmd string            `json:"installCmd"`
	RunPy      string            `json:"run_cmd"`
	InstallPy  string            `json:"install_cmd"`
	Envs       map[string]string `json:"envs"`
}

var (
	namePattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	ownerPattern = regexp.MustCompile(`^github/[A-Za-z0-9][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$`)
	fieldPattern = regexp.MustCompile(`\$\{([A-Za-z0-9_]+)\}`)
)

// catalogue is where a Template describes its servers.
type catalogue struct {
	dir   string // folder of definitions
	repos string // folder of servers from GitHub
}

// servers parses a configuration: an object with the configuration of each server
// by its name. The error says in one sentence what to change.
func (c catalogue) servers(config string) ([]server, error) {
	if len(config) > maxConfig {
		return nil, fmt.Errorf("the configuration has more than %d bytes", maxConfig)
	}
	var asked map[string]json.RawMessage
	if err := json.Unmarshal([]byte(config), &asked); err != nil {
		return nil, fmt.Errorf("the configuration is not an object of servers: %w", err)
	}
	if len(asked) == 0 || len(asked) > maxServers {
		return nil, fmt.Errorf("the configuration names %d servers; it may name 1 to %d", len(asked), maxServers)
	}
	var all []server
	for name, raw := range asked {
		s, err := c.server(name, raw)
		if err != nil {
			return nil, fmt.Errorf("server %.80q: %w", name, err)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b server) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

func (c catalogue) server(name string, raw json.RawMessage) (server, error) {
	if ownerPattern.MatchString(name) {
		return c.repository(name, raw)
	}
	d, err := c.definition(name)
	if err != nil {
		return server{}, err
	}
	fields, err := d.values(raw)
	if err != nil {
		return server{}, err
	}
	fill := func(text string) string {
		return fieldPattern.ReplaceAllStringFunc(text, func(ref string) string { return fields[ref[2:len(ref)-1]] })
	}
	s := server{name: name, dir: d.Cwd}
	for _, word := range d.Command {
		s.command = append(s.command, fill(word))
	}
	for key, value := range d.Env {
		s.env = append(s.env, key+"="+fill(value))
	}
	return s, nil
}

// definition returns the Template's definition of a server.
func (c catalogue) definition(name string) (d definition, err error) {
	absent := fmt.Errorf("this template does not have it; it has %s. A template brings one by a file %s that says its command", c.has(), filepath.Join(c.dir, "NAME.json"))
	if !namePattern.MatchString(name) {
		return d, absent
	}
	f, err := os.Open(filepath.Join(c.dir, name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return d, absent
	}
	if err != nil {
		return d, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err == nil {
		err = strict(text, &d)
	}
	switch {
	case err != nil:
		return d, fmt.Errorf("%s is wrong: %w", f.Name(), err)
	case len(d.Command) == 0 || d.Command[0] == "":
		return d, fmt.Errorf("%s has no command", f.Name())
	}
	return d, nil
}

func (c catalogue) has() string {
	files, _ := filepath.Glob(filepath.Join(c.dir, "*.json")) // the pattern is right
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// values returns the fields of a configuration that the definition uses.
func (d definition) values(raw json.RawMessage) (map[string]string, error) {
	given := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&given); err != nil {
		return nil, fmt.Errorf("its configuration is not an object: %w", err)
	}
	used := map[string]bool{}
	for _, text := range append(slices.Clone(d.Command), d.envValues()...) {
		for _, match := range fieldPattern.FindAllStringSubmatch(text, -1) {
			used[match[1]] = true
		}
	}
	values := map[string]string{}
	for name, value := range given {
		if !used[name] {
			return nil, fmt.Errorf("its configuration has no field %.80q", name)
		}
		switch v := value.(type) {
		case string:
			values[name] = v
		case json.Number, bool:
			values[name] = fmt.Sprint(v)
		default:
			text, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			values[name] = string(text)
		}
		if strings.ContainsRune(values[name], 0) {
			return nil, fmt.Errorf("the field %.80q holds a zero byte", name)
		}
	}
	for name := range used {
		if _, ok := values[name]; ok {
			continue
		}
		value, ok := d.Fields[name]
		if !ok {
			return nil, fmt.Errorf("its configuration lacks the field %q", name)
		}
		values[name] = value
	}
	return values, nil
}

func (d definition) envValues() (all []string) {
	for _, v := range d.Env {
		all = append(all, v)
	}
	return all
}

// repository returns a server from GitHub. It is fetched unless the Template has it
// already.
func (c catalogue) repository(name string, raw json.RawMessage) (server, error) {
	var r repository
	if err := strict(raw, &r); err != nil {
		return server{}, fmt.Errorf("its configuration is wrong: %w", err)
	}
	run, install := r.RunCmd+r.RunPy, r.InstallCmd+r.InstallPy
	if run == "" || r.RunCmd != "" && r.RunPy != "" || r.InstallCmd != "" && r.InstallPy != "" {
		return server{}, errors.New("its configuration needs one runCmd, and one installCmd at most")
	}
	s := server{name: name, command: shell(run), dir: filepath.Join(c.repos, strings.TrimPrefix(name, "github/"))}
	for key, value := range r.Envs {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.ContainsRune(value, 0) {
			return server{}, fmt.Errorf("the variable %.80q has an invalid name", key)
		}
		s.env = append(s.env, key+"="+value)
	}
	if _, err := os.Stat(s.dir); err == nil {
		return s, nil
	}
	s.fetch = func(dir string) error {
		if err := output(dir, "git", "clone", "--quiet", "--depth=1", "https://github.com/"+strings.TrimPrefix(name, "github/"), "."); err != nil {
			return fmt.Errorf("it cannot be fetched: %w", err)
		}
		if install == "" {
			return nil
		}
		words := shell(install)
		if err := output(dir, words[0], words[1:]...); err != nil {
			return fmt.Errorf("installCmd failed: %w", err)
		}
		return nil
	}
	return s, nil
}

func shell(command string) []string { return []string{"/bin/bash", "-l", "-c", command} }

// strict decodes an object and rejects fields that v does not have.
func strict(text []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(v)
}
