// Package chaos breaks a cluster while clients use it, and judges what the clients saw: the
// history of each Sandbox must be linearizable.
package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind is the kind of an operation.
type Kind string

// The operations of clients, and what happens to a Sandbox without one.
const (
	Create       Kind = "create"        // also the first checkpoint, if the client asks for it
	Get          Kind = "get"           // reads State, Name and Timeline
	Rename       Kind = "rename"        // to ID
	AddMemory    Kind = "add to memory" // appends ID to a variable of a code context, and reads it
	ReadMemory   Kind = "read memory"
	AddFile      Kind = "add to file" // appends ID to a file, and reads it
	ReadFile     Kind = "read file"
	Take         Kind = "snapshot"
	Pause        Kind = "pause"
	Resume       Kind = "resume"
	Rollback     Kind = "rollback" // to the Snapshot
	Delete       Kind = "delete"
	Beat         Kind = "beat"  // a call of the Sandbox to the outside, with the variable
	Loss         Kind = "loss"  // a fault that may end a Boot
	wake         Kind = "wake"  // an operation without an answer that may have resumed it
	rouse        Kind = "rouse" // the resume by an operation, which comes before its effect
	save         Kind = "save"  // the pause by a rollback, which comes before its effect
	missingState      = ""      // of an answer without a record
)

// Input is what a client asked for.
type Input struct {
	Sandbox  string
	Kind     Kind
	ID       int    // of AddMemory, AddFile and Rename: unique in the history
	Snapshot string // of Rollback
}

// Output is what it was answered.
type Output struct {
	// Unknown says that there was no answer, or one that does not say whether the operation
	// took effect.
	Unknown bool
	// Gone says that the answer was that the Sandbox has ended.
	Gone     bool
	State    string
	Name     int // the ID of the Rename; 0: the name of the create
	Timeline int
	List     string // of IDs, each with a space before
	Snapshot string // of Take
	Detail   string // for people
}

// Operation is one operation of a client. Times are since the start of the History.
type Operation struct {
	Client       int
	In           Input
	Out          Output
	Call, Return time.Duration
}

// History is what clients saw. Its methods are safe for concurrent use.
type History struct {
	start time.Time

	mu  sync.Mutex
	all []Operation
	ids int
}

// NewHistory returns a History that starts now.
func NewHistory() *History { return &History{start: time.Now()} }

// Now is the time since the start.
func (h *History) Now() time.Duration { return time.Since(h.start) }

// NewID returns an ID for an operation.
func (h *History) NewID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids++
	return h.ids
}

// Do records an operation while it runs.
func (h *History) Do(client int, in Input, do func() Output) Output {
	call := h.Now()
	out := do()
	h.Add(Operation{Client: client, In: in, Out: out, Call: call, Return: h.Now()})
	return out
}

// Add records an operation that has ended.
func (h *History) Add(o Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, o)
}

// Operations returns all recorded operations, by the time of their call.
func (h *History) Operations() []Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Clone(h.all)
	slices.SortStableFunc(all, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	return all
}

// listOf is a List with one more ID.
func listOf(list string, id int) string { return list + " " + strconv.Itoa(id) }

// Prepared returns the operations of one Sandbox for the checker.
//
// An operation without an answer may take effect at any later time. The IDs in later answers
// say whether an append or a rename did, and by when: it ends there. One whose ID no answer
// has is replaced by what may be left of it: the Sandbox may have been resumed. Nothing can
// contradict that choice, since a history in which it took effect unseen is as legal without
// it.
//
// An operation on a paused Sandbox resumes it first, and a rollback pauses it, so they have
// two steps: others may see the one without the other.
func Prepared(sandbox string, all []Operation) []porcupine.Operation {
	type seenKey struct {
		kind Kind
		id   int
	}
	seen := map[seenKey]time.Duration{}
	see := func(kind Kind, id int, at time.Duration) {
		key := seenKey{kind, id}
		if first, ok := seen[key]; !ok || at < first {
			seen[key] = at
		}
	}
	last := time.Duration(0)
	for _, o := range all {
		if o.In.Sandbox != sandbox {
			continue
		}
		last = max(last, o.Return)
		if o.Out.Unknown {
			continue
		}
		kind := AddMemory
		switch o.In.Kind {
		case AddFile, ReadFile:
			kind = AddFile
		case Get:
			see(Rename, o.Out.Name, o.Return)
		}
		for _, text := range strings.Fields(o.Out.List) {
			if id, err := strconv.Atoi(text); err == nil {
				see(kind, id, o.Return)
			}
		}
	}
	var prepared []porcupine.Operation
	for _, o := range all {
		if o.In.Sandbox != sandbox {
			continue
		}
		if o.Out.Unknown {
			switch o.In.Kind {
			case AddMemory, AddFile, Rename:
				at, ok := seen[seenKey{o.In.Kind, o.In.ID}]
				switch {
				case ok:
					o.Return = max(at, o.Call)
				case o.In.Kind == Rename:
					continue
				default:
					o.In.Kind = wake
				}
			case ReadMemory, ReadFile, Resume:
				o.In.Kind = wake
			case Get, Beat, Create:
				continue
			case Rollback:
				o.Return = last
			}
		}
		prepare := func(in Input, out Output) {
			prepared = append(prepared, porcupine.Operation{ClientId: o.Client, Input: in, Output: out, Call: int64(o.Call), Return: int64(o.Return)})
		}
		switch {
		case o.Out.Gone:
		case o.In.Kind == Rollback:
			prepare(Input{Sandbox: sandbox, Kind: save}, Output{})
		case o.In.Kind.resumes():
			prepare(Input{Sandbox: sandbox, Kind: rouse}, Output{})
		}
		prepare(o.In, o.Out)
	}
	return prepared
}

// Sandboxes returns the IDs of all Sandboxes of a history, in the order of their first
// operation.
func Sandboxes(all []Operation) (ids []string) {
	known := map[string]bool{}
	for _, o := range all {
		if !known[o.In.Sandbox] {
			known[o.In.Sandbox] = true
			ids = append(ids, o.In.Sandbox)
		}
	}
	return ids
}

func (o Operation) String() string {
	return fmt.Sprintf("%9.3f %9.3f %s client %d: %s", o.Call.Seconds(), o.Return.Seconds(), o.In.Sandbox, o.Client, describe(o.In, o.Out))
}

func describe(in Input, out Output) string {
	text := string(in.Kind)
	if in.ID != 0 {
		text += " " + strconv.Itoa(in.ID)
	}
	if in.Snapshot != "" {
		text += " " + in.Snapshot
	}
	switch {
	case out.Unknown:
		text += " -> no answer"
	case out.Gone:
		text += " -> ended"
	}
	if out.State != missingState {
		text += fmt.Sprintf(" -> %s, name %d, timeline %d", out.State, out.Name, out.Timeline)
	}
	if out.List != "" {
		text += " ->" + out.List
	}
	if out.Snapshot != "" {
		text += " -> " + out.Snapshot
	}
	if out.Detail != "" {
		text += " (" + out.Detail + ")"
	}
	return text
}
