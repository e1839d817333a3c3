package server

import (
	"context"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/images"
)

const (
	// maxSpares bounds how many sentries wait, for any StartRequest.Spares.
	maxSpares = 64
	// refillEvery is how often spares are inspected while nothing starts.
	refillEvery = 15 * time.Second
)

// kind is the kind of Boot that a sentry is made for.
type kind struct {
	image  string
	shape  sandbox.Shape
	memory bool // the Boot is restored with its processes
	cpu    sandbox.CPUFeatures
}

// spare is the part of a pre-warmed sentry that waits for a Boot.
type spare struct {
	kind
	// image is its image, unlocked until a Boot is in it: a spare does not keep the image
	// in use. nil once there is a Boot.
	image *os.File
}

// kindOf returns the kind of sentry for a start, and whether a pre-warmed one can serve
// it.
func (h *Host) kindOf(r sentryhost.StartRequest, from *origin) (kind, bool) {
	k := kind{r.Image, r.Shape, from.memory(), r.CPU}
	return k, r.Spares > 0 && !from.layer() && from.guestBuild(h) == h.cfg.Build
}

// sentryFor returns a spare for a start, or a boot that has no sentry yet. image is the
// start's image, open and locked.
func (h *Host) sentryFor(r sentryhost.StartRequest, from *origin, image *os.File) *boot {
	if k, ok := h.kindOf(r, from); ok {
		for b := h.takeSpare(k); b != nil; b = h.takeSpare(k) {
			if b.usable(image) {
				b.spare.image.Close()
				b.spare.image = nil
				return b
			}
			h.wg.Go(func() { h.undo(b) })
		}
	}
	return &boot{gone: make(chan struct{})}
}

func (h *Host) takeSpare(k kind) *boot {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.spares, func(b *boot) bool { return b.spare.kind == k })
	if i < 0 {
		return nil
	}
	b := h.spares[i]
	h.spares = slices.Delete(h.spares, i, i+1)
	return b
}

// usable readies a spare for a Boot: it locks the spare's image and ends its low CPU
// priority. False: the image in its place is another file, or the sentry is dead.
func (b *boot) usable(image *os.File) bool {
	select {
	case <-b.gone:
		return false
	default:
	}
	mine, err := b.spare.image.Stat()
	if err != nil {
		return false
	}
	there, err := image.Stat()
	return err == nil && os.SameFile(mine, there) && lockImage(b.spare.image) == nil && b.group.Yield(false) == nil
}

// starts adds n to the number of starts in progress. Spares are made only while this
// number is zero.
func (h *Host) starts(n int) {
	h.mu.Lock()
	h.starting += n
	h.mu.Unlock()
	if n < 0 {
		h.wakeRefill()
	}
}

func (h *Host) wakeRefill() {
	select {
	case h.refillSoon <- struct{}{}:
	default:
	}
}

// rememberStart records a start, so that spares are made for the last r.Spares starts: the
// next ones are assumed to be like them.
func (h *Host) rememberStart(r sentryhost.StartRequest, from *origin) {
	k, ok := h.kindOf(r, from)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wanted = append(h.wanted, k)
	h.wanted = slices.Clone(h.wanted[max(len(h.wanted)-min(r.Spares, maxSpares), 0):])
}

// maintainSpares keeps sentries waiting for the next starts until ctx ends; then it ends
// them.
func (h *Host) maintainSpares(ctx context.Context) {
	defer h.dropSpares()
	for {
		select {
		case <-h.refillSoon:
		case <-time.After(refillEvery):
		case <-ctx.Done():
			return
		}
		h.refill(ctx)
	}
}

// refill ends the unwanted spares and makes the missing ones, one by one, until something
// starts.
func (h *Host) refill(ctx context.Context) {
	h.sparing.Lock()
	defer h.sparing.Unlock()
	for ctx.Err() == nil {
		k, missing, surplus := h.planSpares()
		for _, b := range surplus {
			h.undo(b)
		}
		if !missing {
			return
		}
		b, err := h.newSpare(k)
		if err != nil {
			h.log.Info("starting a spare sentry failed", "image", k.image, telemetry.KeyError, err)
			h.forgetKind(k)
			return
		}
		h.mu.Lock()
		h.spares = append(h.spares, b)
		h.mu.Unlock()
	}
}

// planSpares returns the kind of a missing spare, if any, and removes the spares that
// are unwanted or unusable from the list.
func (h *Host) planSpares() (k kind, missing bool, surplus []*boot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	wanted := slices.Clone(h.wanted)
	var kept []*boot
	for _, b := range h.spares {
		if i := slices.Index(wanted, b.spare.kind); i >= 0 && b.waits() {
			wanted, kept = slices.Delete(wanted, i, i+1), append(kept, b)
		} else {
			surplus = append(surplus, b)
		}
	}
	h.spares = kept
	if len(wanted) == 0 || h.starting > 0 || h.ending {
		return kind{}, false, surplus
	}
	return wanted[len(wanted)-1], true, surplus
}

// waits reports whether a spare lives and its image was not removed.
func (b *boot) waits() bool {
	select {
	case <-b.gone:
		return false
	default:
	}
	var st unix.Stat_t
	return unix.Fstat(int(b.spare.image.Fd()), &st) == nil && st.Nlink > 0
}

// forgetKind drops a kind until something like it starts.
func (h *Host) forgetKind(k kind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wanted = slices.DeleteFunc(h.wanted, func(w kind) bool { return w == k })
}

// newSpare makes a sentry without a Boot.
func (h *Host) newSpare(k kind) (*boot, error) {
	n, err := countTasks("/proc")
	if err != nil {
		return nil, err
	}
	if err := n.checkCapacity(); err != nil {
		return nil, err
	}
	digest, err := imageName(k.image)
	if err != nil {
		return nil, err
	}
	image, err := images.Folder(h.cfg.Images).OpenWhole(digest) // a spare is not worth building the image
	if err != nil {
		return nil, err
	}
	kept, err := duplicate(image)
	if err != nil {
		image.Close()
		return nil, err
	}
	b := &boot{gone: make(chan struct{}), spare: &spare{kind: k, image: kept}}
	b.record.Name, b.record.Shape = sandbox.NewBootID(), k.shape
	p := plan{hostname: guest.Hostname, build: h.cfg.Build, cpu: k.cpu}
	if k.memory {
		p.hostname = guest.RestoredLater
	}
	err = h.makeGroup(b)
	if err == nil { // waiting starts want the processors too
		err = b.group.Yield(true)
	}
	if err != nil {
		image.Close()
		h.undo(b)
		return nil, err
	}
	if err := h.newSentry(b, p, image); err != nil {
		h.undo(b)
		return nil, err
	}
	return b, nil
}

// dropSpares ends all spares, for good.
func (h *Host) dropSpares() {
	h.mu.Lock()
	h.ending = true
	h.mu.Unlock()
	h.sparing.Lock()
	defer h.sparing.Unlock()
	h.mu.Lock()
	all := h.spares
	h.spares = nil
	h.mu.Unlock()
	for _, b := range all {
		h.undo(b)
	}
}
