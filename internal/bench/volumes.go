package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

const (
	volumeName = "bench"
	volumeMB   = 1024
	// largeFile is what is written and read as a whole, smallFile what is read by
	// itself, in bytes.
	largeFile = 100_000_000
	smallFile = 4096
	// smallRounds is the number of small-file operations per large-file operation.
	smallRounds = 25
)

// volumeOps are what a program inside is timed at, by the name that it has for each.
var volumeOps = []struct{ name, operation string }{
	{"stat", "stat of a file in a volume"},
	{"read", "open and read a file of 4 KiB in a volume"},
	{"create", "create a file of 4 KiB in a volume"},
	{"write_large", "write a file of 100 MB in a volume, to fsync"},
	{"read_large", "read a file of 100 MB in a volume"},
}

// volumeProgram is told where, how many rounds, and the sizes, and prints the
// nanoseconds of each. The first round does not count.
const volumeProgram = `
import json, os, time
at, rounds, small, large, per_large = %q, %d, %d, %d, %d
took = {}
def timed(name, times, op):
    all = []
    for i in range(times + 1):
        began = time.perf_counter_ns()
        op(i)
        all.append(time.perf_counter_ns() - began)
    took[name] = all[1:]
def write(path, block, blocks=1, sync=False):
    f = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for _ in range(blocks):
        left = memoryview(block)
        while left:
            left = left[os.write(f, left):]
    if sync:
        os.fsync(f)
    os.close(f)
def read(path, size):
    f = os.open(path, os.O_RDONLY)
    n = 0
    while piece := os.read(f, 1_000_000):
        n += len(piece)
    os.close(f)
    assert n == size, n
known, file = os.urandom(small), os.path.join(at, "file")
write(file, known)
timed("stat", rounds * per_large, lambda i: os.stat(file))
timed("read", rounds * per_large, lambda i: read(file, small))
timed("create", rounds * per_large, lambda i: write(os.path.join(at, "new-%%d" %% i), known))
noise = os.urandom(1_000_000)
timed("write_large", rounds, lambda i: write(file, noise, large // len(noise), True))
timed("read_large", rounds, lambda i: read(file, large))
print(json.dumps(took))
`

// Volume measures what a program inside waits for in a mounted Volume: rounds of
// operations on small files, and fewer on a large one, whose median rates it adds as
// Facts in MB/s.
func (m *Meter) Volume(ctx context.Context, rounds int) error {
	const at = "/volume"
	volume, err := m.Client.CreateVolume(ctx, volumeName, volumeMB)
	if err != nil {
		return err
	}
	mounted := session{
		what:    "a volume",
		request: client.CreateRequest{Volumes: []client.VolumeMount{{Volume: volume.ID, Path: at}}},
	}
	var took map[string][]time.Duration
	err = m.session(ctx, mounted, func(id string) error {
		run := python(fmt.Sprintf(volumeProgram, at, rounds, smallFile, largeFile, smallRounds))
		run.SandboxID, run.Timeout = id, new(300.0)
		result, err := m.Client.Execute(ctx, run)
		switch {
		case err != nil:
			return err
		case result.Status != "ok":
			return fmt.Errorf("in a volume: %s: %s%s", result.Status, result.Stderr, result.Stdout)
		}
		return json.Unmarshal([]byte(result.Stdout), &took)
	})
	if err := errors.Join(err, m.Client.DeleteVolume(context.WithoutCancel(ctx), volume.ID)); err != nil {
		return err
	}
	for _, op := range volumeOps {
		s := &Series{Operation: op.operation, Who: Ours}
		for _, t := range took[op.name] {
			s.add(t, nil)
		}
		if len(s.Samples) == 0 {
			return fmt.Errorf("%s: nothing was measured", op.operation)
		}
		m.Report.Add(s)
		switch op.name {
		case "write_large":
			m.Report.AddFact(Fact{What: "writing 100 MB in a volume, to fsync", Who: Ours, Value: rate(largeFile, s), Unit: "MB/s"})
		case "read_large":
			m.Report.AddFact(Fact{What: "reading 100 MB in a volume", Who: Ours, Value: rate(largeFile, s), Unit: "MB/s"})
		}
	}
	return nil
}
