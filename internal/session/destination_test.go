package session_test

import (
	"context"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

// namedImages are images that Templates' names mean at the time.
type namedImages struct {
	mu    sync.Mutex
	image string
}

func (i *namedImages) set(image string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.image = image
}

func (i *namedImages) Resolve(_ context.Context, _ sandbox.TenantID, template string) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.image == "" {
		return "", sandbox.Errorf(sandbox.NotFound, "no template %q", template)
	}
	return i.image, nil
}

// byImage places each image on a Node of its own, named like it.
type byImage struct {
	placed
	full func(image string) bool
}

func (p byImage) Place(ctx context.Context, needs sandbox.BootNeeds) ([]string, error) {
	if p.full(needs.Image) {
		return nil, sandbox.Errorf(sandbox.Exhausted, "no node has room")
	}
	return []string{needs.Image}, ctx.Err()
}

// Nodes are asked for while a Template is looked up. What they answer counts for the image
// that the name means now.
func TestDestinations(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for _, node := range []string{"one", "two"} {
			w.nodes.boots[node], w.nodes.seen[node] = map[string]sandbox.BoundBoot{}, map[string]int64{}
		}
		named := &namedImages{}
		full := map[string]bool{}
		m := session.New(w.store, w.nodes, byImage{full: func(image string) bool { return full[image] }}, named, session.Config{Engine: "fake"})
		var got sandbox.StartRequest
		var at string
		w.nodes.fail(func(f *faults) {
			f.onStart = func(_ context.Context, node string, req sandbox.StartRequest) error {
				at, got = node, req
				return nil
			}
		})
		for _, tt := range []struct {
			name, image, full string
			want              sandbox.Code
		}{
			{"the first time", "one", "", ""},
			{"the same image", "one", "", ""},
			{"another image", "two", "", ""},
			{"another image, while there is no room for the last one", "one", "two", ""},
			{"no room", "one", "one", sandbox.Exhausted},
			{"a name of nothing", "", "", sandbox.NotFound},
			{"room again", "one", "", ""},
		} {
			named.set(tt.image)
			clear(full)
			full[tt.full] = true
			at, got = "", sandbox.StartRequest{}
			sb, err := m.Create(t.Context(), "t", sandbox.CreateRequest{})
			if sandbox.CodeOf(err) != tt.want {
				t.Errorf("%s: %v", tt.name, err)
			}
			if err == nil && (sb.Image != tt.image || got.Image != tt.image || at != tt.image) {
				t.Errorf("%s: %s, and a boot of %s on %s", tt.name, sb.Image, got.Image, at)
			}
		}
	})
}
