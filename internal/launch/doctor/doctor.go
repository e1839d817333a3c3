// Package doctor examines a host. It reports the problems that keep a server from
// starting there, the problems that will show later, and their fixes. The server's
// start uses the same checks, so both report the same.
package doctor

import (
	"errors"
	"fmt"
	"time"
)

// Level is the severity of a Finding.
type Level string

// Levels. A Problem prevents a server from starting, or Sandboxes.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Problem Level = "problem"
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // the remedy; empty when the check is OK
}

// Err returns a Problem as an error of one sentence; nil for other levels.
func (f Finding) Err() error {
	if f.Level != Problem {
		return nil
	}
	return errors.New(f.Detail + ": " + f.Fix)
}

func ok(format string, args ...any) Finding {
	return Finding{Level: OK, Detail: fmt.Sprintf(format, args...)}
}

func warning(detail, fix string) Finding {
	return Finding{Level: Warning, Detail: detail, Fix: fix}
}

func problem(detail, fix string) Finding {
	return Finding{Level: Problem, Detail: detail, Fix: fix}
}

// Disk describes a file system.
type Disk struct {
	Free, Total int64 // bytes
	ReadOnly    bool
	Memory      bool // it is lost when the machine ends
}

// Host is a host as the checks see it; This describes the current host.
type Host struct {
	Root      string // where /proc and /sys are read below
	UID       int    // of the user that starts the server
	Arch      string // as in GOARCH
	Data      string // absolute path of the data folder, which may be missing
	ServerUID int
	Running   bool   // a server uses the data folder
	Addr      string // where a server is to listen, host:port
	Now       time.Time
	Synced    bool         // the clock is synchronized
	UserNS    func() error // makes a user namespace and releases it
	Disk      func(dir string) (Disk, error)
	Free      func(addr string) error           // whether addr can be listened on
	Released  string                            // the Template base of a release, which may be missing
	Program   func(name string) (string, error) // finds a program
}

// check is one check of a host.
type check struct {
	name  string
	start bool // a start requires it
	look  func(Host) Finding
}

// checks are in order of cause and effect.
var checks = []check{
	{"system", true, Host.system},
	{"rights", true, Host.rights},
	{"cgroups", true, Host.cgroups},
	{"namespaces", true, Host.namespaces},
	{"platform", true, Host.platform},
	{"memory", false, Host.memory},
	{"processes", false, Host.processes},
	{"open files", true, Host.openFiles},
	{"mappings", false, Host.mappings},
	{"data folder", true, Host.dataFolder},
	{"disk", true, Host.disk},
	{"address", false, Host.address},
	{"clock", true, Host.clock},
	{"cpu", false, Host.cpu},
	{"leftovers", false, Host.leftovers},
	{"templates", false, Host.templates},
}

// Look runs every check.
func (h Host) Look() []Finding {
	all := make([]Finding, len(checks))
	for i, c := range checks {
		all[i] = c.look(h)
		all[i].Check = c.name
	}
	return all
}

// Start returns the first Problem that keeps a server from starting, as an error of one
// sentence.
func (h Host) Start() error {
	for _, c := range checks {
		if !c.start {
			continue
		}
		if err := c.look(h).Err(); err != nil {
			return err
		}
	}
	return nil
}

// Folder returns the Problem of the data folder or its disk, if any, as an error of
// one sentence.
func (h Host) Folder() error {
	if err := h.dataFolder().Err(); err != nil {
		return err
	}
	return h.disk().Err()
}

// Advice is the help for a start that failed for a reason that no check foresaw.
const Advice = "`cloud-sandbox doctor` checks this host and says what to fix"
