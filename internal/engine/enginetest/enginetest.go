// Package enginetest is the contract of sandbox.Engine as a test suite, which every
// Engine passes.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sandboxca"
)

// Options configure the suite for one Engine.
type Options struct {
	// Open returns an Engine without Boots and registers its own cleanup. The suite calls
	// it once per case.
	Open func(t *testing.T) sandbox.Engine
	// Reopen returns another Engine over the Boots of e, like a restarted process, and
	// registers its own cleanup. e is not used afterwards.
	Reopen func(t *testing.T, e sandbox.Engine) sandbox.Engine
	// Kill ends a Boot from outside, like a crash.
	Kill func(t *testing.T, e sandbox.Engine, id string)
	// Image is an image that the Engine can start from.
	Image string
	// Shape of the Boots; zero: sandbox.DefaultShape.
	Shape sandbox.Shape
	// Parallel is how many Boots start at once in the concurrency cases; zero: 8.
	Parallel int
	// Wait bounds each wait for an event or an answer; zero: a minute.
	Wait time.Duration
	// Pause is set for an Engine that can pause.
	Pause *Pause
}

// Run checks the Engine contract. Processes inside Boots are not part of it.
func Run(t *testing.T, opts Options) {
	if opts.Shape == (sandbox.Shape{}) {
		opts.Shape = sandbox.DefaultShape()
	}
	if opts.Parallel == 0 {
		opts.Parallel = 8
	}
	if opts.Wait == 0 {
		opts.Wait = time.Minute
	}
	cases := []testCase{
		{"probe names the engine", probe},
		{"a boot starts, answers and stops", startDialStop},
		{"a boot that runs cannot be started again", startTwice},
		{"of concurrent starts of one boot one wins", startRace},
		{"an id of another form is Invalid", badID},
		{"an unknown boot", unknownBoot},
		{"an image that is not there is NotFound", missingImage},
		{"a shape out of bounds is Invalid", badShape},
		{"a start given up leaves nothing", startCanceled},
		{"boots start side by side", startMany},
		{"the list survives a restart", listAfterRestart},
		{"a port that nobody listens on", dialNothing},
		{"the network starts as none and changes", setNetwork},
		{"secrets come and go", setSecrets},
		{"limits change within the shape", setLimits},
		{"a killed boot is told and frees all", watchKilled},
		{"a killed boot is listed until its end is handled", watchListed},
		{"a stopped boot is not told", watchStopped},
		{"a watch ends with its context", watchEnds},
		{"stop twice at once", stopTwice},
		{"who can pause says so", pauseTold},
		{"a fence cuts off all boots", fence},
	}
	if opts.Pause != nil {
		cases = append(cases, pauseCases...)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.check(t, &suite{Options: opts, engine: opts.Open(t)})
		})
	}
}

type testCase struct {
	name  string
	check func(*testing.T, *suite)
}

// pauseCases are for Engines that can pause.
var pauseCases = []testCase{
	{"a boot freezes and thaws", freezeThaw},
	{"any number start from saved memory", saveMemory},
	{"a boot starts from saved files", saveFiles},
	{"what is frozen is saved and stays so", savePause},
	{"what cannot be saved runs on", saveRefused},
	{"a save given up leaves nothing", saveCanceled},
	{"a boot starts for less than was saved", startForLess},
	{"what cannot be started from is refused", startFromRefused},
	{"a state that needs more than the CPU has is refused", lackingCPU},
	{"saved states are listed and deleted", deleteSaved},
	{"what is exported is imported", exportAndImport},
	{"what is not whole is not imported", importRefused},
	{"a boot starts while its state arrives", startWhileArriving},
	{"what is not an export does not arrive", arrivalRefused},
	{"a state shares with those of its group", shareSaved},
	{"saved states survive a restart", savedAfterRestart},
	{"many start from one state at once", restoreMany},
}

// suite is the environment of one case.
type suite struct {
	Options
	engine sandbox.Engine
}

func (s *suite) spec() sandbox.BootSpec { return sandbox.BootSpec{Image: s.Image, Shape: s.Shape} }

func (s *suite) start(t *testing.T) string {
	t.Helper()
	id := sandbox.NewBootID()
	if err := s.engine.Start(t.Context(), id, s.spec()); err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() { _ = s.engine.Stop(context.WithoutCancel(t.Context()), id, 0) })
	return id
}

func (s *suite) stop(t *testing.T, id string) {
	t.Helper()
	if err := s.engine.Stop(t.Context(), id, 0); err != nil {
		t.Fatalf("Stop: %v", err)
	}
}

func (s *suite) list(t *testing.T) []sandbox.BootStatus {
	t.Helper()
	all, err := s.engine.List(t.Context())
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	return all
}

func (s *suite) ids(t *testing.T) []string {
	t.Helper()
	var ids []string
	for _, b := range s.list(t) {
		ids = append(ids, b.ID)
	}
	slices.Sort(ids)
	return ids
}

// answers fails the test unless the Guest of the Boot can be reached.
func (s *suite) answers(t *testing.T, id string) {
	t.Helper()
	conn, err := s.engine.Dial(t.Context(), id, sandbox.GuestPort)
	if err != nil {
		t.Errorf("Dial the guest: %v", err)
		return
	}
	_ = conn.Close()
}

// gone fails the test if the Boot is still visible.
func (s *suite) gone(t *testing.T, id string) {
	t.Helper()
	if slices.Contains(s.ids(t), id) {
		t.Errorf("%s is still in the list", id)
	}
	s.unknown(t, id)
}

func (s *suite) unknown(t *testing.T, id string) {
	t.Helper()
	ctx := t.Context()
	_, err := s.engine.Dial(ctx, id, sandbox.GuestPort)
	codetest.Want(t, "Dial", err, sandbox.NotFound)
	_, err = s.engine.Usage(ctx, id)
	codetest.Want(t, "Usage", err, sandbox.NotFound)
	codetest.Want(t, "SetNetwork", s.engine.SetNetwork(ctx, id, sandbox.NetworkPublic), sandbox.NotFound)
	codetest.Want(t, "SetSecrets", s.engine.SetSecrets(ctx, id, sandbox.SecretBinding{}), sandbox.NotFound)
	_, err = s.engine.NetworkLog(ctx, id)
	codetest.Want(t, "NetworkLog", err, sandbox.NotFound)
	codetest.Want(t, "SetLimits", s.engine.SetLimits(ctx, id, s.Shape.Limits()), sandbox.NotFound)
	if err := s.engine.Stop(ctx, id, 0); err != nil {
		t.Errorf("Stop of an unknown boot = %v", err)
	}
}

func probe(t *testing.T, s *suite) {
	f, err := s.engine.Probe(t.Context())
	if err != nil || f.Name == "" || f.Version == "" || f.Build == "" {
		t.Errorf("Probe = %+v, %v", f, err)
	}
	if ids := s.ids(t); len(ids) != 0 {
		t.Errorf("an engine that runs nothing lists %v", ids)
	}
}

func startDialStop(t *testing.T, s *suite) {
	id := s.start(t)
	s.answers(t, id)
	want := sandbox.BootStatus{ID: id, Image: s.Image, Shape: s.Shape, Network: sandbox.NetworkNone, Limits: s.Shape.Limits()}
	if all := s.list(t); len(all) != 1 || all[0] != want {
		t.Errorf("List = %+v, want %+v", all, want)
	}
	if u, err := s.engine.Usage(t.Context(), id); err != nil || u.MemoryBytes < 0 || u.CPU < 0 {
		t.Errorf("Usage = %+v, %v", u, err)
	}
	s.stop(t, id)
	s.gone(t, id)

	// The name is free again.
	if err := s.engine.Start(t.Context(), id, s.spec()); err != nil {
		t.Fatalf("Start after Stop: %v", err)
	}
	s.answers(t, id)
	if err := s.engine.Stop(t.Context(), id, time.Second); err != nil {
		t.Errorf("Stop with a grace: %v", err)
	}
	s.gone(t, id)
}

func startTwice(t *testing.T, s *suite) {
	id := s.start(t)
	codetest.Want(t, "Start again", s.engine.Start(t.Context(), id, s.spec()), sandbox.Conflict)
	s.answers(t, id)
}

func startRace(t *testing.T, s *suite) {
	id := sandbox.NewBootID()
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = s.engine.Start(t.Context(), id, s.spec()) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			codetest.Want(t, "a losing Start", err, sandbox.Conflict)
		}
	}
	if won != 1 {
		t.Errorf("%d starts won, want 1", won)
	}
	s.answers(t, id)
	s.stop(t, id)
	s.gone(t, id)
}

func badID(t *testing.T, s *suite) {
	ctx := t.Context()
	for _, id := range []string{"", "b", "../../etc", "b0000000000000000000/", "i" + sandbox.NewBootID()[1:], sandbox.NewBootID() + "\x00"} {
		codetest.Want(t, fmt.Sprintf("Start(%q)", id), s.engine.Start(ctx, id, s.spec()), sandbox.Invalid)
		codetest.Want(t, fmt.Sprintf("Stop(%q)", id), s.engine.Stop(ctx, id, 0), sandbox.Invalid)
		_, err := s.engine.Dial(ctx, id, sandbox.GuestPort)
		codetest.Want(t, fmt.Sprintf("Dial(%q)", id), err, sandbox.Invalid)
		_, err = s.engine.Usage(ctx, id)
		codetest.Want(t, fmt.Sprintf("Usage(%q)", id), err, sandbox.Invalid)
		codetest.Want(t, fmt.Sprintf("SetSecrets(%q)", id), s.engine.SetSecrets(ctx, id, sandbox.SecretBinding{}), sandbox.Invalid)
		codetest.Want(t, fmt.Sprintf("SetNetwork(%q)", id), s.engine.SetNetwork(ctx, id, sandbox.NetworkNone), sandbox.Invalid)
		codetest.Want(t, fmt.Sprintf("SetLimits(%q)", id), s.engine.SetLimits(ctx, id, s.Shape.Limits()), sandbox.Invalid)
	}
}

func unknownBoot(t *testing.T, s *suite) { s.unknown(t, sandbox.NewBootID()) }

func missingImage(t *testing.T, s *suite) {
	for _, image := range []string{"", "sha256:0000", "../../../etc/passwd"} {
		id := sandbox.NewBootID()
		codetest.Want(t, fmt.Sprintf("Start of image %q", image),
			s.engine.Start(t.Context(), id, sandbox.BootSpec{Image: image, Shape: s.Shape}), sandbox.NotFound)
		s.gone(t, id)
	}
}

func badShape(t *testing.T, s *suite) {
	id := sandbox.NewBootID()
	codetest.Want(t, "Start without a shape", s.engine.Start(t.Context(), id, sandbox.BootSpec{Image: s.Image}), sandbox.Invalid)
	s.gone(t, id)
}

func startCanceled(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	id := sandbox.NewBootID()
	if err := s.engine.Start(ctx, id, s.spec()); err == nil {
		t.Error("Start with a context that has ended succeeded")
	}
	s.gone(t, id)

	// Cancelled at any moment, a start either succeeds or leaves nothing.
	began := time.Now()
	s.stop(t, s.start(t))
	took := time.Since(began)
	for i := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), took*time.Duration(i+1)/8)
		id := sandbox.NewBootID()
		err := s.engine.Start(ctx, id, s.spec())
		cancel()
		if err == nil {
			s.answers(t, id)
			s.stop(t, id)
		}
		s.gone(t, id)
	}
}

func startMany(t *testing.T, s *suite) {
	ids := make([]string, s.Parallel)
	var wg sync.WaitGroup
	for i := range ids {
		ids[i] = sandbox.NewBootID()
		wg.Go(func() {
			if err := s.engine.Start(t.Context(), ids[i], s.spec()); err != nil {
				t.Errorf("Start: %v", err)
				return
			}
			s.answers(t, ids[i])
		})
	}
	wg.Wait()
	slices.Sort(ids)
	if got := s.ids(t); !slices.Equal(got, ids) {
		t.Errorf("List = %v, want %v", got, ids)
	}
	for _, id := range ids {
		wg.Go(func() {
			if err := s.engine.Stop(t.Context(), id, 0); err != nil {
				t.Errorf("Stop: %v", err)
			}
		})
	}
	wg.Wait()
	if got := s.ids(t); len(got) != 0 {
		t.Errorf("after all were stopped: %v", got)
	}
}

func listAfterRestart(t *testing.T, s *suite) {
	first, second := s.start(t), s.start(t)
	if err := s.engine.SetNetwork(t.Context(), second, sandbox.NetworkPublic); err != nil {
		t.Fatal(err)
	}
	half := halved(s.Shape)
	if err := s.engine.SetLimits(t.Context(), second, half); err != nil {
		t.Fatal(err)
	}
	s.engine = s.Reopen(t, s.engine)
	all := s.list(t)
	slices.SortFunc(all, func(a, b sandbox.BootStatus) int {
		if a.ID == first {
			return -1
		}
		return 1
	})
	want := []sandbox.BootStatus{
		{ID: first, Image: s.Image, Shape: s.Shape, Network: sandbox.NetworkNone, Limits: s.Shape.Limits()},
		{ID: second, Image: s.Image, Shape: s.Shape, Network: sandbox.NetworkPublic, Limits: half},
	}
	if !slices.Equal(all, want) {
		t.Errorf("List = %+v, want %+v", all, want)
	}
	for _, id := range []string{first, second} {
		s.answers(t, id)
		if err := s.engine.Start(t.Context(), id, s.spec()); !errors.Is(err, sandbox.Conflict) {
			t.Errorf("Start of what an earlier process started = %v, want conflict", err)
		}
		s.stop(t, id)
		s.gone(t, id)
	}
}

func dialNothing(t *testing.T, s *suite) {
	id := s.start(t)
	conn, err := s.engine.Dial(t.Context(), id, 1)
	if err == nil { // an Engine whose Boots listen on every port
		_ = conn.Close()
		return
	}
	codetest.Want(t, "Dial of a closed port", err, sandbox.Unavailable)
}

func setNetwork(t *testing.T, s *suite) {
	id := s.start(t)
	for _, policy := range []sandbox.NetworkPolicy{sandbox.NetworkPublic, sandbox.NetworkPublic, sandbox.NetworkNone} {
		if err := s.engine.SetNetwork(t.Context(), id, policy); err != nil {
			t.Fatalf("SetNetwork(%s): %v", policy, err)
		}
		if all := s.list(t); len(all) != 1 || all[0].Network != policy {
			t.Errorf("after SetNetwork(%s): %+v", policy, all)
		}
	}
	codetest.Want(t, "SetNetwork to nonsense", s.engine.SetNetwork(t.Context(), id, "open"), sandbox.Invalid)
	s.answers(t, id)
}

func setSecrets(t *testing.T, s *suite) {
	id := s.start(t)
	certificate, key, err := sandboxca.New([]byte("a seed"), id)
	if err != nil {
		t.Fatal(err)
	}
	some := sandbox.SecretBinding{
		Authority: certificate, Key: sandbox.SecretValue(key),
		Headers: []sandbox.SecretHeader{{Host: "api.example.com", Port: 443, Header: "X-Key", Value: "v"}},
	}
	for _, b := range []sandbox.SecretBinding{some, some, {}} {
		if err := s.engine.SetSecrets(t.Context(), id, b); err != nil {
			t.Fatalf("SetSecrets with %d headers: %v", len(b.Headers), err)
		}
	}
	s.answers(t, id)
}

// halved are limits below those of a Shape, and enough for a Boot.
func halved(s sandbox.Shape) sandbox.Limits {
	return sandbox.Limits{CPUs: s.CPUs / 2, MemoryBytes: max(s.MemoryBytes*3/4, 128<<20), Pids: max(s.Pids/2, 32), Bandwidth: 2 * sandbox.Megabit}
}

func setLimits(t *testing.T, s *suite) {
	id := s.start(t)
	all := s.Shape.Limits()
	more := all
	more.CPUs, more.Pids = float64(s.Shape.VisibleCPUs()), 2*all.Pids
	for _, limits := range []sandbox.Limits{halved(s.Shape), more, all, all} {
		if err := s.engine.SetLimits(t.Context(), id, limits); err != nil {
			t.Fatalf("SetLimits(%+v): %v", limits, err)
		}
		if list := s.list(t); len(list) != 1 || list[0].Limits != limits {
			t.Errorf("after SetLimits(%+v): %+v", limits, list)
		}
	}
	for name, tt := range map[string]struct {
		change func(*sandbox.Limits)
		want   sandbox.Code
	}{
		"no cpu":             {func(l *sandbox.Limits) { l.CPUs = 0 }, sandbox.Invalid},
		"no memory":          {func(l *sandbox.Limits) { l.MemoryBytes = 0 }, sandbox.Invalid},
		"no pids":            {func(l *sandbox.Limits) { l.Pids = 0 }, sandbox.Invalid},
		"a trickle":          {func(l *sandbox.Limits) { l.Bandwidth = 1 }, sandbox.Invalid},
		"more than it sees":  {func(l *sandbox.Limits) { l.CPUs = float64(s.Shape.VisibleCPUs()) + 0.5 }, sandbox.Conflict},
		"more than it holds": {func(l *sandbox.Limits) { l.MemoryBytes = s.Shape.MemoryBytes + 1 }, sandbox.Conflict},
	} {
		limits := all
		tt.change(&limits)
		codetest.Want(t, "SetLimits with "+name, s.engine.SetLimits(t.Context(), id, limits), tt.want)
	}
	if list := s.list(t); len(list) != 1 || list[0].Limits != all {
		t.Errorf("after refused limits: %+v", list)
	}
	s.answers(t, id)
}

// within waits until ok returns true, at most s.Wait.
func (s *suite) within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(s.Wait); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen within %v", what, s.Wait)
		}
	}
}

// watch collects the Engine's events until the test ends.
func (s *suite) watch(t *testing.T) <-chan sandbox.BootEvent {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	events := make(chan sandbox.BootEvent, 100)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.engine.Watch(ctx, func(e sandbox.BootEvent) { events <- e }) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return events
}

func watchKilled(t *testing.T, s *suite) {
	events := s.watch(t)
	killed, other := s.start(t), s.start(t)
	s.Kill(t, s.engine, killed)
	select {
	case e := <-events:
		if e.ID != killed || e.Kind != sandbox.BootEnded {
			t.Errorf("told %+v, want the end of %s", e, killed)
		}
		switch e.Cause {
		case sandbox.CauseOOM, sandbox.CauseGuestExit, sandbox.CauseEngineLost:
		default:
			t.Errorf("cause = %q", e.Cause)
		}
	case <-time.After(s.Wait):
		t.Fatal("the end of a killed boot was not told")
	}
	s.within(t, "the killed boot off the list", func() bool { return !slices.Contains(s.ids(t), killed) })
	s.gone(t, killed)
	s.answers(t, other)
	if err := s.engine.Start(t.Context(), killed, s.spec()); err != nil {
		t.Fatalf("what a killed boot held is not free: %v", err)
	}
	s.stop(t, killed)
}

// watchListed compares the list with the events while a Boot ends, as a Node does. A Node
// takes a Boot that is missing for one whose cause is lost.
func watchListed(t *testing.T, s *suite) {
	first, killed := s.start(t), s.start(t)
	var watching, handled atomic.Bool
	release := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		_ = s.engine.Watch(ctx, func(e sandbox.BootEvent) {
			if e.ID == first {
				watching.Store(true)
				return
			}
			handled.Store(true)
			select {
			case <-release:
			case <-ctx.Done():
			}
		})
	})
	s.Kill(t, s.engine, first)
	s.within(t, "the first event", watching.Load)
	s.Kill(t, s.engine, killed)
	s.within(t, "the event", func() bool {
		if !slices.Contains(s.ids(t), killed) && !handled.Load() {
			t.Fatal("a boot left the list before its event")
		}
		return handled.Load()
	})
	if !slices.Contains(s.ids(t), killed) {
		t.Error("a boot left the list while its event was handled")
	}
	close(release)
	s.within(t, "the killed boot off the list", func() bool { return !slices.Contains(s.ids(t), killed) })
}

// watchStopped kills a second Boot: when its event arrives, an event of the first one
// would have arrived too.
func watchStopped(t *testing.T, s *suite) {
	events := s.watch(t)
	stopped, killed := s.start(t), s.start(t)
	s.stop(t, stopped)
	s.Kill(t, s.engine, killed)
	select {
	case e := <-events:
		if e.ID != killed {
			t.Errorf("told %+v, want only the end of %s", e, killed)
		}
	case <-time.After(s.Wait):
		t.Fatal("the end of a killed boot was not told")
	}
}

func watchEnds(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.engine.Watch(ctx, func(sandbox.BootEvent) {}) }()
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Watch = %v, want context.Canceled", err)
		}
	case <-time.After(s.Wait):
		t.Fatal("Watch goes on after its context ended")
	}
}

func stopTwice(t *testing.T, s *suite) {
	id := s.start(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := s.engine.Stop(t.Context(), id, 0); err != nil {
				t.Errorf("Stop: %v", err)
			}
		})
	}
	wg.Wait()
	s.gone(t, id)
}
