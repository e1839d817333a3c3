package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// States of a Sandbox, as the API names them.
const (
	running = "running"
	paused  = "paused"
	ended   = "ended"
)

// saved is the part of a Sandbox that goes back with it.
type saved struct{ memory, file string }

// state is a Sandbox as the model knows it. It is comparable, and steps never change it.
type state struct {
	life     string // empty: before its create
	name     int
	timeline int
	saved
	// points are the states to which a loss may take it back, each as pointText: the last
	// acknowledged checkpoint, and what may have been saved since.
	points string
	// certain says that one of points is acknowledged: a loss must not end it.
	certain bool
	// snapshots are the acknowledged ones, ID and pointText in a line each.
	snapshots string
	// mayPause, mayWake and maySave say that an operation without an answer may still do so.
	mayPause, mayWake, maySave bool
	// mayTry says that a resume without an answer may have a Boot that is stopped again, and tried
	// are the lists in memory of such Boots of rollbacks, each in a line. An answer of another
	// Boot ends both: at most one runs.
	mayTry bool
	tried  string
	// mayEnd says that a delete has no answer yet.
	mayEnd bool
}

func (p saved) text() string { return p.memory + "|" + p.file + "\n" }

func savedOf(text string) saved {
	memory, file, _ := strings.Cut(strings.TrimSuffix(text, "\n"), "|")
	return saved{memory, file}
}

// keep is s after an acknowledged checkpoint of its present state.
func (s state) keep() state {
	s.points, s.certain = s.text(), true
	return s
}

// mayKeep is s after its present state may have been saved.
func (s state) mayKeep() state {
	if p := s.text(); !slices.Contains(strings.SplitAfter(s.points, "\n"), p) {
		s.points += p
	}
	return s
}

// step returns the states that may follow when an operation was answered; none: it cannot
// have been answered so.
func step(s state, in Input, out Output) []state {
	if s.life == "" {
		if in.Kind != Create {
			return nil
		}
		return []state{{life: running, timeline: 1}}
	}
	if s.life == ended {
		return stepEnded(s, in, out)
	}
	if out.Gone {
		if s.mayEnd {
			s.life = ended
			return []state{s}
		}
		return nil
	}
	switch in.Kind {
	case Get:
		return stepGet(s, out)
	case Rename:
		s.name = in.ID
	case AddMemory, AddFile:
		return stepAdd(s, in, out)
	case ReadMemory, ReadFile:
		return stepRead(s, in, out)
	case Beat:
		return stepBeat(s, out)
	case wake:
		s.mayWake, s.mayTry = true, true
	case rouse:
		roused := s
		if roused.life = running; roused != s {
			return []state{s, roused}
		}
	case save:
		if s.life == running {
			stopped := s.mayKeep()
			stopped.life = paused
			return []state{s, stopped}
		}
	case Take:
		if out.Unknown {
			s = s.mayKeep()
			s.maySave = true
			return []state{s}
		}
		s = s.keep()
		s.snapshots += out.Snapshot + " " + s.text()
	case Pause:
		if out.Unknown {
			s = s.mayKeep()
			s.mayPause, s.maySave = true, true
			return []state{s}
		}
		if s.life == running { // pausing a paused one changes nothing
			s = s.keep()
		}
		s = s.alone()
		s.life = paused
	case Resume:
		s = s.alone()
		s.life = running
	case Rollback:
		return stepRollback(s, in, out)
	case Delete:
		if out.Unknown {
			s.mayEnd = true
			return []state{s}
		}
		s.life = ended
	case Loss:
		return append(lost(s), s)
	default:
		return nil
	}
	return []state{s}
}

// list is the list in s that an operation adds to or reads.
func (s *state) list(kind Kind) *string {
	if kind == AddFile || kind == ReadFile {
		return &s.file
	}
	return &s.memory
}

// stepAdd is step of an append to a list, which resumes a paused Sandbox.
func stepAdd(s state, in Input, out Output) []state {
	list := s.list(in.Kind)
	*list, s.life = listOf(*list, in.ID), running
	if !out.Unknown {
		if out.List != *list {
			return nil
		}
		s = s.alone()
	}
	return []state{s.changed()}
}

// stepRead is step of a read of a list, which resumes a paused Sandbox.
func stepRead(s state, in Input, out Output) []state {
	if out.List != *s.list(in.Kind) {
		return nil
	}
	s = s.alone()
	s.life = running
	return []state{s}
}

// alone is s after an answer that no tried Boot gave.
func (s state) alone() state {
	s.mayTry, s.tried = false, ""
	return s
}

// stepBeat is step of a call to the outside, which resumes nothing. It may be of the Boot of a
// resume or rollback without an answer, which is undone.
func stepBeat(s state, out Output) (all []state) {
	if s.mayTry && s.life != running && out.List == s.memory || slices.Contains(strings.SplitAfter(s.tried, "\n"), out.List+"\n") {
		all = append(all, s)
	}
	if out.List == s.memory && (s.life == running || s.mayWake) {
		s.life = running
		all = append(all, s)
	}
	return all
}

// changed is s after its memory or file changed.
func (s state) changed() state {
	if s.maySave {
		return s.mayKeep()
	}
	return s
}

// stepEnded is step of a Sandbox that has ended: nothing else can be answered.
func stepEnded(s state, in Input, out Output) []state {
	switch {
	case in.Kind == Loss, in.Kind == wake, in.Kind == rouse, in.Kind == save, in.Kind == Delete, out.Unknown, out.Gone:
	case in.Kind == Get && out.State == ended:
	default:
		return nil
	}
	return []state{s}
}

func stepGet(s state, out Output) []state {
	if out.State == ended {
		if s.mayEnd {
			s.life = ended
			return []state{s}
		}
		return nil
	}
	if out.Name != s.name || out.Timeline != s.timeline {
		return nil
	}
	switch out.State {
	case running:
		if s.life != running && !s.mayWake {
			return nil
		}
		s.life = running
	case paused:
		if s.life == running {
			if !s.mayPause {
				return nil
			}
			s = s.mayKeep()
		}
		s.life = paused
	default: // on its way: an operation that is concurrent, or has no answer
	}
	return []state{s}
}

// stepRollback is step of a rollback. Without an answer it may have failed, and left the
// Sandbox paused in its state from before.
func stepRollback(s state, in Input, out Output) []state {
	before := s.mayKeep()
	before.mayPause, before.mayWake, before.maySave, before.mayTry = true, true, true, true
	back := s
	found := false
	for line := range strings.Lines(s.snapshots) {
		if id, text, _ := strings.Cut(line, " "); id == in.Snapshot {
			// The list of a line begins with a space if it is not empty.
			back.saved, found = savedOf(text), true
		}
	}
	if !found {
		return nil
	}
	back.timeline++
	back.life = running
	back = back.keep()
	if !out.Unknown {
		return []state{back}
	}
	back.mayPause, back.mayWake, back.maySave = true, true, true
	before.tried += back.memory + "\n"
	return []state{before, back.withPoint(s.saved)}
}

// withPoint is s with another state to which a loss may take it back.
func (s state) withPoint(p saved) state {
	now := s.saved
	s.saved = p
	s = s.mayKeep()
	s.saved = now
	return s
}

// lost returns the states after the loss of a Boot: it is paused in a checkpoint, or has
// ended if it may have none.
func lost(s state) (all []state) {
	if s.life != running && !s.mayWake {
		return nil
	}
	for p := range strings.Lines(s.points) {
		back := s
		back.saved = savedOf(p)
		back.life = paused
		back.timeline++
		back.points, back.certain = p, true
		all = append(all, back)
	}
	if !s.certain {
		s.life = ended
		all = append(all, s)
	}
	return all
}

// model is the model of one Sandbox.
func model() porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(s, in, out any) (all []any) {
			for _, next := range step(s.(state), in.(Input), out.(Output)) {
				all = append(all, next)
			}
			return all
		},
		DescribeOperation: func(in, out any) string { return describe(in.(Input), out.(Output)) },
		DescribeState: func(s any) string {
			v := s.(state)
			return fmt.Sprintf("%s, name %d, timeline %d, memory%s, file%s, checkpoints %q", v.life, v.name, v.timeline, v.memory, v.file, v.points)
		},
	}
	return nondeterministic.ToModel()
}

// Verdict is the judgement of the history of one Sandbox.
type Verdict struct {
	Sandbox    string
	Operations int
	Result     porcupine.CheckResult
	info       porcupine.LinearizationInfo
}

// Check judges the history of each Sandbox, in at most limit for one.
func Check(all []Operation, limit time.Duration) (verdicts []Verdict) {
	for _, id := range Sandboxes(all) {
		prepared := Prepared(id, all)
		result, info := porcupine.CheckOperationsVerbose(model(), prepared, limit)
		verdicts = append(verdicts, Verdict{id, len(prepared), result, info})
	}
	return verdicts
}

// Contradiction returns the operation whose answer contradicts the history before it: without
// the operations that were called after it, the history is illegal, and without it too it is
// not.
func (v Verdict) Contradiction(all []Operation) Operation {
	byReturn := slices.DeleteFunc(slices.Clone(all), func(o Operation) bool { return o.In.Sandbox != v.Sandbox || o.Out.Unknown })
	slices.SortFunc(byReturn, func(a, b Operation) int { return cmp.Compare(a.Return, b.Return) })
	first := sort.Search(len(byReturn)-1, func(i int) bool {
		at := byReturn[i].Return
		until := slices.DeleteFunc(slices.Clone(all), func(o Operation) bool { return o.Call > at || o.Return > at && !o.Out.Unknown })
		return porcupine.CheckOperationsTimeout(model(), Prepared(v.Sandbox, until), contradictionLimit) == porcupine.Illegal
	})
	return byReturn[first]
}

// contradictionLimit bounds one of the checks for a Contradiction.
const contradictionLimit = 10 * time.Second

// Draw writes the history and the longest linearizations that were found to an HTML file.
func (v Verdict) Draw(path string) error { return porcupine.VisualizePath(model(), v.info, path) }
