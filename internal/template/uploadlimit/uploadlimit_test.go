package uploadlimit

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestReceive(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	broken := errors.New("broken")
	endless := io.LimitReader(neverEnds{}, 2*LookEvery)
	for name, tt := range map[string]struct {
		ctx  context.Context
		room Bounds
		sent io.Reader
		want error
	}{
		"what fits":                     {t.Context(), Bounds{Most: 3}, strings.NewReader("abc"), nil},
		"one byte too many":             {t.Context(), Bounds{Most: 2}, strings.NewReader("abc"), sandbox.TooLarge},
		"what never ends":               {t.Context(), Bounds{Most: 5}, neverEnds{}, sandbox.TooLarge},
		"more than the disk is to hold": {t.Context(), Bounds{Most: 3, Leave: 1 << 60}, strings.NewReader("abc"), sandbox.Exhausted},
		"what breaks off":               {t.Context(), Bounds{Most: 3}, iotest.ErrReader(broken), broken},
		"a client that left":            {gone, Bounds{Most: 4 * LookEvery}, endless, context.Canceled},
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), "sent"))
		if err != nil {
			t.Fatal(err)
		}
		if err := tt.room.Receive(tt.ctx, f, tt.sent); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// neverEnds gives zeros.
type neverEnds struct{}

func (neverEnds) Read(p []byte) (int, error) { return len(p), nil }
