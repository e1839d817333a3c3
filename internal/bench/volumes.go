package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

const (
	volumeName = "bench"
	volumeMB   = 1024
	// largeFile is the size of a file that is written and read as a stream, smallFile of
	// one that is read at once, in bytes.
	largeFile = 100_000_000
	smallFile = 4096
	// smallRounds is the number of small-file operations per large-file operation.
	smallRounds = 25
)

// volumeOps are the operations that a program inside times, with its name for each.
var volumeOps = []volumeOp{
	{name: "stat", operation: "volume: stat of a file"},
	{name: "read", operation: "volume: open and read a file of 4 KiB", goal: "3"},
	{name: "create", operation: "volume: create a file of 4 KiB"},
	{name: "write_large", operation: "volume: stream 100 MB into a file, to fsync", goal: ">= 300", stream: true},
	{name: "read_large", operation: "volume: stream 100 MB from a file", goal: ">= 300", stream: true},
}

// VolumeOperations returns the names of the operations that Volume measures.
func VolumeOperations() []string {
	names := make([]string, len(volumeOps))
	for i, op := range volumeOps {
		names[i] = op.operation
	}
	return names
}

type volumeOp struct {
	name, operation, goal string
	stream                bool // its result is a rate
}

// volumeProgram gets the folder, the number of rounds, and the sizes. It prints the
// nanoseconds of each operation. The first round does not count.
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

// Volume measures a program's waits in a mounted Volume: operations on small files,
// and rounds of streaming a large file, whose median rates it adds as Facts in MB/s.
func (m *Meter) Volume(ctx context.Context, rounds int) error {
	const at = "/volume"
	volume, err := m.Client.CreateVolume(ctx, volumeName, volumeMB)
	if err != nil {
		return err
	}
	mounted := session{
		what:    "a volume",
		request: v1.CreateRequest{Volumes: &v1.VolumeMounts{{Volume: volume.ID, Path: at}}},
	}
	var took map[string][]time.Duration
	m.Report.Begin()
	err = m.session(ctx, mounted, func(id string) error {
		run := python(VolumeProgram(at, rounds))
		run.SandboxID, run.TimeoutSeconds = id, new(v1.SecondsOrNone(5*time.Minute))
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
	var failed error
	for _, op := range volumeOps {
		s := op.series(took, Ours)
		s.Goal = op.goal
		switch {
		case len(s.Samples) == 0:
			err = fmt.Errorf("%s: nothing was measured", op.operation)
		case op.stream:
			err = m.addRate(ctx, s, largeFile, op.goal)
		default:
			err = m.add(ctx, s)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// series returns the measurements of op in took, the output of VolumeProgram.
func (op volumeOp) series(took map[string][]time.Duration, who string) *Series {
	s := &Series{Operation: op.operation, Who: who}
	for _, t := range took[op.name] {
		s.add(t, nil)
	}
	return s
}

// VolumeProgram is a Python program that measures operations on files in a folder,
// rounds times on a large file and more often on small ones.
func VolumeProgram(folder string, rounds int) string {
	return fmt.Sprintf(volumeProgram, folder, rounds, smallFile, largeFile, smallRounds)
}

// BesideVolume returns another product's measurement of an operation of Volume, from
// the output of its VolumeProgram; nil for other operations.
func BesideVolume(operation string, output []byte, who string) (*Series, error) {
	var took map[string][]time.Duration
	if err := json.Unmarshal(output, &took); err != nil {
		return nil, err
	}
	for _, op := range volumeOps {
		if op.operation == operation {
			s := op.series(took, who)
			s.Operation = "the same in " + who
			return s, nil
		}
	}
	return nil, nil
}
