package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// shelf keeps images in memory.
type shelf struct {
	mu      sync.Mutex
	images  map[string][]byte
	opened  int
	dropped []string
	// gate holds every read of an image until it is closed; nil: none does.
	gate chan struct{}
	// away is the error of every call; nil: none.
	away error
}

func newShelf(versions ...string) *shelf {
	s := &shelf{images: map[string][]byte{}}
	for _, v := range versions {
		s.images[v] = []byte("the image " + v)
	}
	return s
}

func (s *shelf) OpenImage(ctx context.Context, version string) (io.ReadCloser, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	content, ok := s.images[version]
	switch {
	case s.away != nil:
		return nil, 0, s.away
	case !ok:
		return nil, 0, sandbox.Errorf(sandbox.NotFound, "no image %s", version)
	}
	s.opened++
	return io.NopCloser(&gated{ctx, s.gate, bytes.NewReader(content)}), int64(len(content)), nil
}

// gated reads after its gate is closed.
type gated struct {
	ctx  context.Context
	gate chan struct{}
	io.Reader
}

func (g *gated) Read(p []byte) (int, error) {
	if g.gate != nil {
		select {
		case <-g.gate:
		case <-g.ctx.Done():
			return 0, g.ctx.Err()
		}
	}
	return g.Reader.Read(p)
}

func (s *shelf) StoreImage(_ context.Context, version string, size int64, image io.Reader) error {
	content, err := io.ReadAll(image)
	if err != nil {
		return err
	}
	if int64(len(content)) != size {
		return sandbox.Errorf(sandbox.Invalid, "%d bytes, not %d", len(content), size)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images[version] = content
	return nil
}

func (s *shelf) MissingImages(_ context.Context, versions []string) (missing []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range versions {
		if s.images[v] == nil {
			missing = append(missing, v)
		}
	}
	return missing, s.away
}

func (s *shelf) ListImages() (all []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for v := range s.images {
		all = append(all, v)
	}
	return all, nil
}

func (s *shelf) Drop(_ context.Context, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.images, version)
	s.dropped = append(s.dropped, version)
	return nil
}

func (s *shelf) openings() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

func open(home, here *shelf) *Images {
	return New(Config{Home: home, Here: here, Log: slog.New(slog.DiscardHandler)})
}

// All who need an image at the same time wait for one fetch of it, and the next finds it
// here.
func TestOneFetchForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home, here := newShelf("a"), newShelf()
		home.gate = make(chan struct{})
		i := open(home, here)
		results := make(chan error)
		for range 10 {
			go func() { results <- i.Present(t.Context(), "sha256:a") }()
		}
		synctest.Wait()
		close(home.gate)
		for range 10 {
			codetest.OK(t, "Present", <-results)
		}
		codetest.OK(t, "Present of one that is here", i.Present(t.Context(), "a"))
		if n := home.openings(); n != 1 {
			t.Errorf("it was fetched %d times", n)
		}
	})
}

// A fetch ends with the last who waits for it, and not before.
func TestFetchEndsWithItsLastWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home, here := newShelf("a"), newShelf()
		home.gate = make(chan struct{})
		i := open(home, here)
		results := make(chan error)
		present := func() context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { results <- i.Present(ctx, "a") }()
			synctest.Wait()
			return cancel
		}
		first, second := present(), present()
		first()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("the first waiter has %v", err)
		}
		synctest.Wait()
		if len(i.fetching) != 1 {
			t.Error("the fetch ended with its first waiter")
		}
		second()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("the second waiter has %v", err)
		}
		synctest.Wait()
		if len(i.fetching) != 0 || len(here.images) != 0 {
			t.Errorf("%d fetches go on, and %d images are here", len(i.fetching), len(here.images))
		}
		third := present()
		defer third()
		close(home.gate)
		codetest.OK(t, "Present afterwards", <-results)
		if n := home.openings(); n != 2 {
			t.Errorf("it was fetched %d times", n)
		}
	})
}

// A fetch that brings nothing is given up, and the caller told to come again.
func TestFetchThatStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home := newShelf("a")
		home.gate = make(chan struct{})
		began := time.Now()
		err := open(home, newShelf()).Present(t.Context(), "a")
		codetest.Want(t, "Present", err, sandbox.Unavailable)
		if took := time.Since(began); took != defaultStall || !errors.Is(err, errStalled) {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestFetchesThatFail(t *testing.T) {
	home := newShelf()
	i := open(home, newShelf())
	codetest.Want(t, "an image that is gone", i.Present(t.Context(), "a"), sandbox.NotFound)
	home.away = errors.New("no answer")
	err := i.Present(t.Context(), "a")
	var told *sandbox.Error
	if !errors.As(err, &told) || told.Code != sandbox.Unavailable || told.RetryAfter <= 0 {
		t.Errorf("a home that is away: %v", err)
	}
}

// Fetches of many images take turns.
func TestFetchesAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home := newShelf("a", "b", "c", "d")
		home.gate = make(chan struct{})
		i := open(home, newShelf())
		results := make(chan error)
		for v := range home.images {
			go func() { results <- i.Present(t.Context(), v) }()
		}
		synctest.Wait()
		if n := home.openings(); n != defaultAtOnce {
			t.Errorf("%d are fetched at a time", n)
		}
		close(home.gate)
		for range 4 {
			codetest.OK(t, "Present", <-results)
		}
	})
}

func TestOffer(t *testing.T) {
	home, here := newShelf("a"), newShelf("a", "b")
	i := open(home, here)
	for _, v := range []string{"a", "sha256:b"} {
		codetest.OK(t, "Offer", i.Offer(t.Context(), v))
	}
	if string(home.images["b"]) != "the image b" || here.openings() != 1 {
		t.Errorf("the home has %q after %d readings", home.images, here.openings())
	}
}

// An image goes after the second sweep that does not find it at home, and never because
// the home does not answer.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home, here := newShelf("a", "b"), newShelf("a", "b", "c")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- open(home, here).Run(ctx) }()
		after := func(d time.Duration) []string {
			time.Sleep(d)
			synctest.Wait()
			here.mu.Lock()
			defer here.mu.Unlock()
			return slices.Clone(here.dropped)
		}
		if got := after(defaultSweep + time.Second); len(got) != 0 {
			t.Errorf("after one sweep %q are dropped", got)
		}
		home.mu.Lock()
		home.away = errors.New("no answer")
		home.mu.Unlock()
		if got := after(3 * defaultSweep); len(got) != 0 {
			t.Errorf("while the home is away %q are dropped", got)
		}
		home.mu.Lock()
		home.away = nil
		home.mu.Unlock()
		if got := after(2 * defaultSweep); !slices.Equal(got, []string{"c"}) {
			t.Errorf("%q are dropped", got)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// silent is a home that hears nothing.
type silent struct{ *shelf }

func (silent) MissingImages(ctx context.Context, _ []string) ([]string, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// mute is a silent home that sends no image either.
type mute struct{ silent }

func (mute) OpenImage(ctx context.Context, _ string) (io.ReadCloser, int64, error) {
	<-ctx.Done()
	return nil, 0, ctx.Err()
}

// broken is a home that dies while it sends an image.
type broken struct{ *shelf }

func (broken) OpenImage(context.Context, string) (io.ReadCloser, int64, error) {
	return io.NopCloser(io.MultiReader(bytes.NewReader([]byte("the ")), failing{})), 11, nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the connection broke") }

// An image comes from its copy if the home does not answer, and only then.
func TestFetchFromCopy(t *testing.T) {
	with := func(s *shelf, err error) *shelf {
		s.away = err
		return s
	}
	gone := sandbox.Errorf(sandbox.Unavailable, "no answer")
	for name, tt := range map[string]struct {
		home   func() sandbox.TemplateImages
		copies func() *shelf // nil: one with the image
		code   sandbox.Code
		opened int // at copies
		after  time.Duration
	}{
		"away":       {home: func() sandbox.TemplateImages { return with(newShelf(), gone) }, opened: 1},
		"silent":     {home: func() sandbox.TemplateImages { return silent{newShelf("a")} }, opened: 1, after: homeLimit},
		"breaks off": {home: func() sandbox.TemplateImages { return broken{newShelf("a")} }, opened: 1},
		"stalls": {home: func() sandbox.TemplateImages {
			s := newShelf("a")
			s.gate = make(chan struct{})
			return s
		}, opened: 1, after: defaultStall},
		"answers":         {home: func() sandbox.TemplateImages { return newShelf("a") }},
		"says it is gone": {home: func() sandbox.TemplateImages { return newShelf() }, code: sandbox.NotFound},
		"refuses": {
			home: func() sandbox.TemplateImages { return with(newShelf("a"), sandbox.Errorf(sandbox.Denied, "no")) },
			code: sandbox.Unavailable,
		},
		"away without a copy": {
			home:   func() sandbox.TemplateImages { return with(newShelf(), gone) },
			copies: func() *shelf { return newShelf() }, code: sandbox.Unavailable,
		},
		"away, and so are copies": {
			home:   func() sandbox.TemplateImages { return with(newShelf(), gone) },
			copies: func() *shelf { return with(newShelf("a"), gone) }, code: sandbox.Unavailable,
		},
		"slow without a copy": {
			home:   func() sandbox.TemplateImages { return silent{newShelf("a")} },
			copies: func() *shelf { return newShelf() }, after: homeLimit,
		},
		"slow, and copies are away": {
			home:   func() sandbox.TemplateImages { return silent{newShelf("a")} },
			copies: func() *shelf { return with(newShelf("a"), gone) }, after: homeLimit,
		},
		"slow, and it is gone everywhere": {
			home:   func() sandbox.TemplateImages { return silent{newShelf()} },
			copies: func() *shelf { return newShelf() }, code: sandbox.NotFound, after: homeLimit,
		},
		"slow, and gone while copies are away": {
			home:   func() sandbox.TemplateImages { return silent{newShelf()} },
			copies: func() *shelf { return with(newShelf("a"), gone) }, code: sandbox.NotFound, after: homeLimit,
		},
		"silent for good, without a copy": {
			home:   func() sandbox.TemplateImages { return mute{silent{newShelf("a")}} },
			copies: func() *shelf { return newShelf() }, code: sandbox.Unavailable, after: homeLimit + patience*defaultStall,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			copied, here := newShelf("a"), newShelf()
			if tt.copies != nil {
				copied = tt.copies()
			}
			i := New(Config{Home: tt.home(), Here: here, Copies: copied, Log: slog.New(slog.DiscardHandler)})
			began := time.Now()
			err := i.Present(t.Context(), "sha256:a")
			if sandbox.CodeOf(err) != tt.code || copied.openings() != tt.opened || time.Since(began) != tt.after {
				t.Errorf("%s: %v after %v, with %d openings", name, err, time.Since(began), copied.openings())
			}
			if err == nil && string(here.images["a"]) != "the image a" {
				t.Errorf("%s: %q", name, here.images)
			}
		})
	}
}

// Callers that wait for a copy share one fetch, and it ends with the last of them.
func TestFetchFromCopyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home, copied, here := newShelf(), newShelf("a"), newShelf()
		home.away = sandbox.Errorf(sandbox.Unavailable, "no answer")
		copied.gate = make(chan struct{})
		i := New(Config{Home: home, Here: here, Copies: copied, Log: slog.New(slog.DiscardHandler)})
		ctx, leave := context.WithCancel(t.Context())
		results := make(chan error)
		for range 5 {
			go func() { results <- i.Present(ctx, "a") }()
		}
		synctest.Wait()
		if n := copied.openings(); n != 1 {
			t.Errorf("it is fetched %d times", n)
		}
		leave()
		for range 5 {
			if err := <-results; !errors.Is(err, context.Canceled) {
				t.Errorf("Present: %v", err)
			}
		}
		close(copied.gate)
		codetest.OK(t, "Present afterwards", i.Present(t.Context(), "a"))
	})
}
