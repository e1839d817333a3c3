package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// Goals of pauses, resumes and forks, in the form of Plan's.
const (
	goalPause      = "60 (150)"
	goalResume     = "90 (220)"
	goalResumeHeap = "260 (500)"
	goalHalfSecond = "500"
	goalAtRest     = "150"
	goalManyFiles  = "2000" // of a resume
	goalFork10     = "700"
)

// Goal of a pause of many files: at most so many times the median of bare runsc in the
// same run. The margin is for the spread of both.
const (
	floorManyFiles = 1.1
	noteManyFiles  = "beside bare runsc the goal is 1.1 times the median of its checkpoint in the same run, which is the floor: " +
		"gVisor writes a page of memory and an object of its kernel for each file."
)

// roundsOfAll is the number of rounds from which large sessions are measured too.
const roundsOfAll = 10

// session is a Sandbox that is paused and resumed.
type session struct {
	what    string
	request v1.CreateRequest
	begin   []client.ExecuteRequest // creates its state
	read    client.ExecuteRequest   // the execution that wakes it
	pause   string                  // goal
	floor   float64                 // goal of pauses, as Series.Floor; zero: pause is the goal
	note    string                  // remark on pauses
	resume  string                  // goal
	rounds  int
	when    string // moment of the pause, as in the operation's name
	// prepare brings the running session to that moment, and then only its pauses are
	// reported; nil: it is paused right after the execution that resumed it.
	prepare func(ctx context.Context, m *Meter, id string) error
	// before runs before each resume and makes it harder; nil: no step. If it is set,
	// pauses are not reported.
	before func() error
}

func python(code string) client.ExecuteRequest {
	return client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Language: "python", Code: code}}
}

func shell(code string) client.ExecuteRequest {
	return client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Language: "bash", Code: code, TimeoutSeconds: new(v1.SecondsOrNone(5 * time.Minute))}}
}

// Sessions that are paused and resumed, by their names in operations.
const (
	IdleSession      = "an idle Python session"
	UncachedSession  = IdleSession + ", nothing of it cached"
	LargeFileSession = "a session with 1 GiB of changed files"
	ManyFilesSession = "a session with 100,000 small files"
)

// Moments at which sessions with large files are paused. Right after a resume, most
// of the files are not yet read into the layer of the new Boot. Right after a write,
// they are not yet written to the disk. At rest, neither is left to do.
const (
	AtRest           = ", at rest"
	RightAfterResume = ", right after a resume"
	RightAfterWrite  = ", right after all of it was written"
)

// untilRest is the time after which a session with large files is at rest.
const untilRest = 6 * time.Second

// HeapSession names a session with a heap of so many megabytes.
func HeapSession(mb int) string { return fmt.Sprintf("a Python session with a heap of %d MB", mb) }

// Programs that make the state of sessions and of rivals' containers.
const (
	WriteLargeFile = "head -c 1G /dev/urandom > big"
	MakeLargeFile  = WriteLargeFile + " && sync"
	MakeManyFiles  = `
import os
for i in range(100_000):
    if i % 1000 == 0:
        os.makedirs(f"many/{i // 1000}")
    with open(f"many/{i // 1000}/{i}", "w") as f:
        f.write("some fifty bytes, as many files of a project have\n")
`
)

// MakeHeap returns a program that holds so many incompressible megabytes in x.
func MakeHeap(mb int) string {
	return fmt.Sprintf("import os\nx = b''.join(os.urandom(1_000_000) for _ in range(%d))\ntotal = sum(x[::4096])", mb)
}

// heap is a session that holds so many incompressible megabytes.
func heap(mb int) session {
	return session{
		what:    HeapSession(mb),
		request: v1.CreateRequest{Resources: &v1.Resources{MemoryMB: new(int64(max(512, 2*mb)))}},
		begin:   []client.ExecuteRequest{python(MakeHeap(mb))},
		read:    python("assert sum(x[::4096]) == total"), // reads every page, with little work of its own
	}
}

// sessions returns the sessions to pause and resume: n rounds of the quick ones,
// fewer of others.
func sessions(n int, uncached bool) []session {
	idle := session{what: IdleSession, begin: []client.ExecuteRequest{python("x = 42")}, read: python("assert x == 42"), rounds: n}
	idle.pause, idle.resume = goalPause, goalResume
	small, large := heap(100), heap(500)
	small.resume, small.rounds = goalResumeHeap, max(n/2, 1)
	large.pause, large.resume, large.rounds = goalHalfSecond, goalHalfSecond, max(n/5, 1)
	files := session{
		what:  LargeFileSession,
		begin: []client.ExecuteRequest{shell(MakeLargeFile)},
		read:  shell("test $(stat -c %s big) = 1073741824"),
		when:  RightAfterResume,
		pause: goalHalfSecond, resume: goalHalfSecond, rounds: max(n/5, 1),
	}
	atRest, written := files, files
	atRest.when, atRest.pause = AtRest, goalAtRest
	atRest.prepare = func(ctx context.Context, m *Meter, id string) error {
		return cmp.Or(m.executeIn(ctx, id, files.read), sleep(ctx, untilRest))
	}
	written.when = RightAfterWrite
	written.prepare = func(ctx context.Context, m *Meter, id string) error {
		return m.executeIn(ctx, id, shell(WriteLargeFile))
	}
	many := session{
		what:  ManyFilesSession,
		begin: []client.ExecuteRequest{python(MakeManyFiles)},
		read:  shell("test $(find many -type f | wc -l) = 100000"),
		floor: floorManyFiles, note: noteManyFiles, resume: goalManyFiles, rounds: max(n/5, 1),
	}
	if n < roundsOfAll {
		return []session{idle}
	}
	all := []session{idle, small, large, files, atRest, written, many}
	if uncached {
		cold := idle
		cold.what, cold.pause, cold.resume, cold.before, cold.rounds = UncachedSession, "", "", DropCaches, max(n/2, 1)
		all = append(all, cold)
	}
	return all
}

// Saved measures pausing, resuming and forking Sandboxes: n rounds of quick
// operations, fewer of others, and large sessions only with at least ten rounds. With
// uncached the page cache of this machine, where the server must be, is dropped
// before some, which takes root.
func (m *Meter) Saved(ctx context.Context, n int, uncached bool) error {
	var failed error
	for _, s := range sessions(n, uncached) {
		failed = errors.Join(failed, m.pauses(ctx, s))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return errors.Join(failed, m.forks(ctx, 10, max(n/4, 2)))
}

// session calls use with a Sandbox of s, which it then ends.
func (m *Meter) session(ctx context.Context, s session, use func(id string) error) error {
	s.request.TimeoutSeconds = v1.SecondsOf(time.Hour)
	sb, err := m.Client.Create(ctx, s.request)
	if err != nil {
		return err
	}
	for _, r := range s.begin {
		if err := m.executeIn(ctx, sb.ID, r); err != nil {
			return errors.Join(err, m.end(ctx, sb.ID))
		}
	}
	return errors.Join(use(sb.ID), m.end(ctx, sb.ID))
}

// pauses measures rounds of a pause and of an execution that resumes. The first round
// does not count.
func (m *Meter) pauses(ctx context.Context, s session) error {
	paused := &Series{Operation: Pause(s.what + s.when), Who: Ours, Goal: s.pause, Floor: s.floor, Note: s.note}
	resumed := &Series{Operation: Resume(s.what), Who: Ours, Goal: s.resume}
	err := m.session(ctx, s, func(id string) error {
		m.Report.Begin()
		return RepeatBoth(ctx, paused, resumed, s.rounds, func(ctx context.Context, _ int) (first, second func() error) {
			var unprepared error
			if s.prepare != nil {
				unprepared = s.prepare(ctx, m, id)
			}
			first = func() error {
				if unprepared != nil {
					return unprepared
				}
				_, err := m.Client.Pause(ctx, id, false)
				return err
			}
			return first, func() error { return m.executeIn(ctx, id, s.read) }
		}, s.beforeResume)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.what, err)
	}
	switch {
	case s.before != nil:
		return m.add(ctx, resumed)
	case s.prepare != nil:
		return m.add(ctx, paused)
	}
	return m.add(ctx, paused, resumed)
}

// Pause and Resume name the measurements of a session.
func Pause(what string) string { return "pause " + what }

func Resume(what string) string {
	return "resume " + what + ", to the end of an execution that uses it"
}

func (s session) beforeResume() error {
	if s.before == nil {
		return nil
	}
	return s.before()
}

// DropCaches drops the kernel's page cache.
func DropCaches() error { return os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0) }

// SavedElsewhere measures resumes, n rounds of each, of sessions whose saved state is
// at where, and no longer on the server's host: gone waits until it has left the
// host.
func (m *Meter) SavedElsewhere(ctx context.Context, where string, n int, gone func() error) error {
	idle := session{what: IdleSession, begin: []client.ExecuteRequest{python("x = 42")}, read: python("assert x == 42")}
	var failed error
	for _, s := range []session{idle, heap(100)} {
		s.what, s.before, s.rounds = s.what+", from "+where, gone, n
		failed = errors.Join(failed, m.pauses(ctx, s))
	}
	return failed
}

// forks measures copying a running Sandbox, count at once.
func (m *Meter) forks(ctx context.Context, count, rounds int) error {
	s := session{begin: []client.ExecuteRequest{python("x = 42")}}
	series := &Series{Operation: Fork(count), Who: Ours, Goal: goalFork10}
	err := m.session(ctx, s, func(id string) error {
		m.Report.Begin()
		return Repeat(ctx, series, rounds, func(ctx context.Context) (time.Duration, error) {
			var forks []v1.Fork
			took, err := timed(func() (err error) {
				forks, err = m.Client.Fork(ctx, id, v1.ForkRequest{Count: &count})
				return err
			})
			ids := make([]string, len(forks))
			for i, f := range forks {
				if ids[i] = f.ID; f.Error != nil && err == nil {
					err = errors.New(f.Error.Message)
				}
			}
			return took, errors.Join(err, m.endAll(ctx, ids))
		})
	})
	if err == nil {
		err = m.add(ctx, series)
	}
	return err
}

// Fork names the forks of a running session.
func Fork(count int) string { return fmt.Sprintf("fork a running Python session into %d", count) }

// Storm measures concurrent resumes of paused Sandboxes, and ends them.
func (m *Meter) Storm(ctx context.Context, ids []string) error {
	s := &Series{Operation: fmt.Sprintf("resume %d sandboxes at once, each to the end of an execution", len(ids)), Who: Ours}
	m.Report.Begin()
	AtOnce(s, len(ids), func(i int) error { return m.executeIn(ctx, ids[i], shell("true")) })
	return errors.Join(m.add(ctx, s), context.Cause(ctx), m.endAll(ctx, ids))
}

// storm pauses n Sandboxes and measures their resumes.
func (m *Meter) storm(ctx context.Context, n int) error {
	ids, err := m.Paused(ctx, n)
	if err != nil {
		return errors.Join(err, m.endAll(ctx, ids))
	}
	return m.Storm(ctx, ids)
}

// Paused creates n paused Sandboxes, a few at a time, and returns their IDs: empty
// for failed ones.
func (m *Meter) Paused(ctx context.Context, n int) ([]string, error) {
	ids, errs := make([]string, n), make([]error, n)
	var all sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range ids {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			var sb v1.Sandbox
			if sb, errs[i] = m.Client.Create(ctx, v1.CreateRequest{TimeoutSeconds: v1.SecondsOf(time.Hour)}); errs[i] == nil {
				ids[i] = sb.ID
				_, errs[i] = m.Client.Pause(ctx, sb.ID, false)
			}
		})
	}
	all.Wait()
	return ids, errors.Join(errs...)
}

// Listed measures reading the first page of a list of n Sandboxes.
func (m *Meter) Listed(ctx context.Context, n, rounds int) error {
	s := &Series{Operation: ListPaused(n), Who: Ours, Goal: "(50)"}
	m.Report.Begin()
	err := Repeat(ctx, s, rounds, func(ctx context.Context) (time.Duration, error) {
		return timed(func() error { _, err := m.Client.List(ctx, nil, nil, 100); return err })
	})
	if err == nil {
		err = m.add(ctx, s)
	}
	return err
}

// ListPaused names reading the first page of n Sandboxes.
func ListPaused(n int) string { return fmt.Sprintf("list 100 of %d paused sandboxes", n) }

// Chain measures the disk space of a chain of Snapshots, each of a session of 100 MB
// that changes 1 MB between them. used returns the disk space in use. The server
// packs Snapshots that are unused for a second.
func (m *Meter) Chain(ctx context.Context, length int, used func() (int64, error)) error {
	s := session{begin: []client.ExecuteRequest{shell("head -c 100M /dev/urandom > data && sync")}}
	return m.session(ctx, s, func(id string) error {
		before, err := used()
		if err != nil {
			return err
		}
		made := make([]string, 0, length)
		defer func() {
			for _, snapshot := range made {
				_, _ = m.Client.DeleteSnapshot(context.WithoutCancel(ctx), snapshot)
			}
		}()
		for i := range length {
			change := fmt.Sprintf("dd if=/dev/urandom of=data bs=1M count=1 seek=%d conv=notrunc status=none", i*7)
			if err := m.executeIn(ctx, id, shell(change)); err != nil {
				return err
			}
			snapshot, err := m.Client.TakeSnapshot(ctx, id, "", false)
			if err != nil {
				return err
			}
			made = append(made, snapshot.ID)
		}
		after, err := used()
		if err != nil {
			return err
		}
		packed, still, err := settled(ctx, used)
		if err != nil {
			return err
		}
		note := ""
		if still {
			note = fmt.Sprintf("the disk was still written to after %v, when this was measured", settleTime)
		}
		what := fmt.Sprintf("disk for %d snapshots of a session of 100 MB that changes 1 MB between them", length)
		m.Report.AddFact(Fact{What: what + ", as they are taken", Who: Ours, Value: float64((after - before) / 1e6), Unit: "MB"})
		m.Report.AddFact(Fact{What: what + ", once they are packed", Who: Ours, Value: float64((packed - before) / 1e6), Unit: "MB", Goal: "< 1000", Note: note})
		return nil
	})
}

// Bounds of the wait until a disk is at rest.
const (
	settleTime = 60 * time.Second
	settlePace = time.Second
	restTime   = 8 * time.Second
)

// settled waits until used has returned the same value for restTime, and returns it.
// After settleTime it returns the latest value and true for changing.
func settled(ctx context.Context, used func() (int64, error)) (last int64, changing bool, err error) {
	for began, since := time.Now(), time.Now(); ; {
		now, err := used()
		if err != nil {
			return 0, false, err
		}
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) >= restTime {
			return now, false, nil
		}
		if time.Since(began) >= settleTime {
			return now, true, nil
		}
		if err := sleep(ctx, settlePace); err != nil {
			return 0, false, err
		}
	}
}
