package bench

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
	"time"
)

// The program that measures inside measures each operation, as often as it is told.
func TestVolumeProgram(t *testing.T) {
	python3, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	const rounds, small, large, perLarge = 2, 16, 3_000_000, 3
	out, err := exec.CommandContext(t.Context(), python3, "-c", fmt.Sprintf(volumeProgram, t.TempDir(), rounds, small, large, perLarge)).Output()
	if err != nil {
		t.Fatal(err)
	}
	var took map[string][]time.Duration
	if err := json.Unmarshal(out, &took); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	for _, op := range volumeOps {
		want := rounds
		if op.name == "stat" || op.name == "read" || op.name == "create" {
			want *= perLarge
		}
		if len(took[op.name]) != want {
			t.Errorf("%s: %d times, want %d", op.name, len(took[op.name]), want)
		}
	}
	if len(took) != len(volumeOps) {
		t.Errorf("%d operations, want %d", len(took), len(volumeOps))
	}
}
