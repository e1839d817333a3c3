// Package fetch brings the images of Templates to a Node whose installation keeps its
// Templates on another Node. It also removes images that the other Node no longer has.
package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	defaultAtOnce = 2
	defaultSweep  = 10 * time.Minute
	defaultStall  = 30 * time.Second
	// homeLimit is how long the home may be silent before an image is fetched from a copy.
	homeLimit = 3 * time.Second
	// retryAfter is the advice for an image that could not be fetched.
	retryAfter = 5 * time.Second
	// sweepBatch is how many versions one question is about.
	sweepBatch = 1000
)

// Config of Images. Home, Here and Log are required.
type Config struct {
	Home sandbox.TemplateImages // of the Node that keeps the Templates
	Here Local
	Log  *slog.Logger
	// Copies has copies of the images of Home, for the time in which Home does not answer;
	// nil: none exist.
	Copies Source
	// AtOnce is how many images are fetched at a time; zero: 2.
	AtOnce int
	// Sweep is how often images are removed that Home does not have any more; zero: 10
	// min. Stall is how long a fetch may bring no byte; zero: 30 s.
	Sweep, Stall time.Duration
}

// Source has images to read, like sandbox.TemplateImages.
type Source interface {
	OpenImage(ctx context.Context, version string) (image io.ReadCloser, bytes int64, err error)
}

// Local keeps the images of this host.
type Local interface {
	sandbox.TemplateImages
	// ListImages returns the versions of all images here.
	ListImages() ([]string, error)
	// Drop removes an image without names and users; another one stays.
	Drop(ctx context.Context, version string) error
}

// Images brings images to this host. Use New. Its methods are safe for concurrent use.
type Images struct {
	cfg   Config
	slots chan struct{} // one for each fetch

	mu       sync.Mutex
	fetching map[string]*fetch // by version
	going    sync.WaitGroup
}

// fetch is a running fetch of one image, for all callers that wait for it. Images.mu
// guards waiters.
type fetch struct {
	waiters int // zero: it has been cancelled
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // once done
}

// New returns Images.
func New(cfg Config) *Images {
	cfg.AtOnce = cmp.Or(cfg.AtOnce, defaultAtOnce)
	cfg.Sweep, cfg.Stall = cmp.Or(cfg.Sweep, defaultSweep), cmp.Or(cfg.Stall, defaultStall)
	return &Images{cfg: cfg, slots: make(chan struct{}, cfg.AtOnce), fetching: map[string]*fetch{}}
}

// Present returns once the image of a version is on this host. Concurrent calls for one
// version share a fetch, which ends when the last of them has left. NotFound when the
// image is gone, Exhausted when the disk has no room, Unavailable when it cannot be
// fetched at the moment.
func (i *Images) Present(ctx context.Context, image string) error {
	version := strings.TrimPrefix(image, "sha256:")
	for {
		missing, err := i.cfg.Here.MissingImages(ctx, []string{version})
		if err != nil || len(missing) == 0 {
			return err
		}
		f, joined := i.join(ctx, version)
		select {
		case <-f.done:
			if joined {
				return f.err
			}
		case <-ctx.Done():
			if joined {
				i.leave(f)
			}
			return ctx.Err()
		}
	}
}

// join returns the running fetch of a version, or begins one. It reports false for a
// cancelled fetch, which has to end before the next begins.
func (i *Images) join(ctx context.Context, version string) (f *fetch, joined bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if f := i.fetching[version]; f != nil {
		if f.waiters == 0 {
			return f, false
		}
		f.waiters++
		return f, true
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f = &fetch{waiters: 1, cancel: cancel, done: make(chan struct{})}
	i.fetching[version] = f
	i.going.Go(func() {
		defer cancel()
		f.err = i.fetch(run, version)
		i.mu.Lock()
		delete(i.fetching, version)
		i.mu.Unlock()
		close(f.done)
	})
	return f, true
}

// leave removes a waiter from a fetch. The last waiter cancels the fetch.
func (i *Images) leave(f *fetch) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		f.cancel()
	}
}

// fetch fetches one image.
func (i *Images) fetch(ctx context.Context, version string) error {
	select {
	case i.slots <- struct{}{}:
		defer func() { <-i.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	began := time.Now()
	n, from, err := i.bring(ctx, version)
	if err == nil {
		i.cfg.Log.InfoContext(ctx, "the image of a template was fetched", "version", version, "from", from, "bytes", n, "took", time.Since(began))
		return nil
	}
	if ctx.Err() == nil {
		i.cfg.Log.WarnContext(ctx, "fetching the image of a template failed", "version", version, telemetry.KeyError, err)
	}
	if errors.Is(err, sandbox.NotFound) || errors.Is(err, sandbox.Exhausted) {
		return err
	}
	e := sandbox.Errorf(sandbox.Unavailable, "the image of the template cannot be fetched at the moment")
	e.RetryAfter = retryAfter
	return e.WithCause(err)
}

var errStalled = errors.New("no byte of the image came for too long")

// patience is how many times longer than between two bytes an image may be away at its
// beginning and its end: it is expanded, or waits for others, and it is synced.
const patience = 10

// bring copies an image from the home, or from its copy while the home does not answer. A
// home that is only slow is asked again if no copy can be read.
func (i *Images) bring(ctx context.Context, version string) (n int64, from string, err error) {
	const home, blobs = "the node that keeps the templates", "its copy in blobs"
	if err = i.reach(ctx, version); err == nil {
		if n, err = i.carry(ctx, version, i.cfg.Home, i.cfg.Here); err == nil {
			return n, home, nil
		}
	}
	if i.cfg.Copies == nil || ctx.Err() != nil || !errors.Is(err, errAway) {
		return 0, home, err
	}
	n, failed := i.carry(ctx, version, i.cfg.Copies, i.cfg.Here)
	if failed == nil || errors.Is(failed, sandbox.Exhausted) {
		return n, blobs, failed
	}
	if errors.Is(failed, sandbox.NotFound) {
		failed = nil // the home may have it
	}
	if errors.Is(err, errSilent) && ctx.Err() == nil {
		if n, err = i.carry(ctx, version, i.cfg.Home, i.cfg.Here); err == nil {
			return n, home, nil
		}
	}
	return 0, home, errors.Join(err, failed)
}

var (
	// errAway is in the error of a source that did not answer, or broke off.
	errAway = errors.New("where the image comes from does not answer")
	// errSilent is in the error of a home that took longer than homeLimit, and may answer
	// later.
	errSilent = errors.New("the node that keeps the templates takes too long to answer")
)

// reach returns errAway if the home is silent and there may be a copy: to begin with an
// image it may take much longer.
func (i *Images) reach(ctx context.Context, version string) error {
	if i.cfg.Copies == nil {
		return nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, homeLimit, errSilent)
	defer cancel()
	_, err := i.cfg.Home.MissingImages(limited, []string{version})
	switch {
	case err != nil && limited.Err() != nil:
		return fmt.Errorf("%w: %w: %w", errAway, context.Cause(limited), err)
	case errors.Is(err, sandbox.Unavailable):
		return fmt.Errorf("%w: %w", errAway, err)
	}
	return err
}

// carry copies an image, and gives up when no byte comes for too long.
func (i *Images) carry(ctx context.Context, version string, from Source, to sandbox.TemplateImages) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(patience*i.cfg.Stall, func() { cancel(errStalled) })
	defer stalled.Stop()
	image, n, err := from.OpenImage(ctx, version)
	away := errors.Is(err, sandbox.Unavailable)
	if err == nil {
		defer image.Close()
		stalled.Reset(i.cfg.Stall)
		m := &moving{Reader: image, moved: func(last bool) {
			if stalled.Reset(i.cfg.Stall); last {
				stalled.Reset(patience * i.cfg.Stall)
			}
		}}
		err = to.StoreImage(ctx, version, n, m)
		away = err != nil && m.failed.Load()
	}
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		err, away = errStalled, true
	}
	if away {
		err = fmt.Errorf("%w: %w", errAway, err)
	}
	return n, err
}

// moving reports every read that brings bytes, and the last one. failed is set by a read
// that fails.
type moving struct {
	io.Reader
	moved  func(last bool)
	failed atomic.Bool
}

func (m *moving) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	last := errors.Is(err, io.EOF)
	if n > 0 || last {
		m.moved(last)
	}
	if err != nil && !last {
		m.failed.Store(true)
	}
	return n, err
}

// Offer brings an image of this host to the Node that keeps the Templates, if it is
// missing there.
func (i *Images) Offer(ctx context.Context, image string) error {
	version := strings.TrimPrefix(image, "sha256:")
	missing, err := i.cfg.Home.MissingImages(ctx, []string{version})
	if err != nil || len(missing) == 0 {
		return err
	}
	_, err = i.carry(ctx, version, i.cfg.Here, i.cfg.Home)
	return err
}

// Run removes images that are gone at Home, until ctx ends, and waits for the fetches.
func (i *Images) Run(ctx context.Context) error {
	defer i.going.Wait()
	tick := time.NewTicker(i.cfg.Sweep)
	defer tick.Stop()
	gone := map[string]bool{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		var err error
		if gone, err = i.sweep(ctx, gone); err != nil && ctx.Err() == nil {
			i.cfg.Log.Warn("removing old images of templates failed; will retry", telemetry.KeyError, err)
		}
	}
}

// sweep drops the images that Home lacked at the last sweep and still lacks. An image
// that Home lacks for the first time stays: it may have been imported a moment ago and
// be on its way there. sweep returns the images that Home lacks now.
func (i *Images) sweep(ctx context.Context, before map[string]bool) (map[string]bool, error) {
	have, err := i.cfg.Here.ListImages()
	if err != nil {
		return before, err
	}
	gone := map[string]bool{}
	var failed []error
	for len(have) > 0 {
		batch := have[:min(len(have), sweepBatch)]
		have = have[len(batch):]
		missing, err := i.cfg.Home.MissingImages(ctx, batch)
		if err != nil {
			return before, err
		}
		for _, version := range missing {
			gone[version] = true
			if before[version] {
				failed = append(failed, i.cfg.Here.Drop(ctx, version))
			}
		}
	}
	return gone, errors.Join(failed...)
}
