package failpoint_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/failpoint"
)

// It is over before the step of the number that was last written, and the steps
// before it are made.
func TestDiesBeforeAStep(t *testing.T) {
	file := filepath.Join(t.TempDir(), "at")
	died := 0
	inner := fake.New()
	defer inner.Close()
	e := failpoint.New(file, func() { died++ }).Engine(inner)
	start := func() {
		t.Helper()
		if err := e.Start(t.Context(), sandbox.NewBootID(), sandbox.BootSpec{Image: fake.Image, Shape: sandbox.DefaultShape()}); err != nil {
			t.Fatal(err)
		}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, none := range []string{"", "word", "word x"} {
		write(none)
		start()
	}
	for i, word := range []string{"one", "two"} {
		write(fmt.Sprintf("%s %d\n", word, 2))
		for step := range 3 {
			start()
			if want := i + min(step, 1); died != want {
				t.Errorf("%s: after %d steps it died %d times, not %d", word, step+1, died, want)
			}
		}
	}
	write("three 1")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if start(); died != 2 {
		t.Errorf("without the file it died: %d", died)
	}
}
