package session

import (
	"context"
	"sync"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// maxGuesses bounds the Templates whose last images are remembered.
const maxGuesses = 10_000

// guesses are the images that Templates' names meant last. A guess only saves time: the
// Nodes for it count only if the name still means that image.
type guesses struct {
	mu     sync.Mutex
	images map[namedTemplate]string
}

// namedTemplate is a Template as a Tenant names it.
type namedTemplate struct {
	tenant sandbox.TenantID
	name   string
}

func (g *guesses) of(t namedTemplate) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.images[t]
}

func (g *guesses) remember(t namedTemplate, image string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.images[t] == image {
		return
	}
	if len(g.images) >= maxGuesses {
		clear(g.images)
	}
	g.images[t] = image
}

// A destination is the image of a new Sandbox, and the Nodes to try.
type destination struct {
	image string
	nodes []string
	err   error
}

// seek begins to look for the destination of a Sandbox. found waits for it. The caller must
// call drop, which ends the search.
func (m *Manager) seek(ctx context.Context, t namedTemplate, shape sandbox.Shape) (found func() destination, drop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var to destination
	var looking sync.WaitGroup
	looking.Go(func() { to = m.destination(ctx, t, shape) })
	drop = func() {
		cancel()
		looking.Wait()
	}
	return func() destination {
		looking.Wait()
		return to
	}, drop
}

// destination asks for Nodes while the Template's image is looked up, since the image is
// mostly the same as the last time.
func (m *Manager) destination(ctx context.Context, t namedTemplate, shape sandbox.Shape) (to destination) {
	guess := m.guesses.of(t)
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	var guessed destination
	var placing sync.WaitGroup
	if guess != "" {
		placing.Go(func() { guessed = m.place(asking, t.tenant, guess, shape) })
	}
	to.image, to.err = m.images.Resolve(ctx, t.tenant, t.name)
	if to.err != nil || to.image != guess {
		cancel()
	}
	placing.Wait()
	switch {
	case to.err != nil:
		return to
	case to.image == guess:
		return guessed
	}
	m.guesses.remember(t, to.image)
	return m.place(ctx, t.tenant, to.image, shape)
}

// place asks for the Nodes on which a Tenant's Boot of an image may start.
func (m *Manager) place(ctx context.Context, tenant sandbox.TenantID, image string, shape sandbox.Shape) destination {
	nodes, err := m.placement.Place(ctx, sandbox.BootNeeds{Tenant: tenant, Image: image, Shape: shape})
	if err == nil && len(nodes) == 0 {
		err = sandbox.Errorf(sandbox.Exhausted, "no node has room")
	}
	return destination{image, nodes, err}
}
