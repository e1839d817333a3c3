package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// transferFile is where Transfer writes inside.
const transferFile = "/workspace/bench.bin"

// Transfer measures sending size bytes into a Sandbox's file and reading them
// back, rounds times, and adds the median rates as Facts in MB/s. The bytes are
// random: nothing on the way can compress them.
func (m *Meter) Transfer(ctx context.Context, size int64, rounds int) error {
	up := &Series{Operation: "upload"}
	down := &Series{Operation: "download"}
	err := m.within(ctx, func(id string) error {
		err := Repeat(ctx, up, rounds, func(ctx context.Context) (time.Duration, error) {
			return timed(func() error {
				_, err := m.Client.WriteFile(ctx, id, transferFile, io.LimitReader(newNoise(), size), size)
				return err
			})
		})
		return errors.Join(err, Repeat(ctx, down, rounds, func(ctx context.Context) (time.Duration, error) {
			return timed(func() error { return m.download(ctx, id, size) })
		}))
	})
	if err != nil {
		return err
	}
	m.Report.AddFact(Fact{What: "upload of " + bytesText(size) + " to a file", Who: Ours, Value: rate(size, up), Unit: "MB/s", Goal: ">= 200"})
	m.Report.AddFact(Fact{What: "download of " + bytesText(size) + " from a file", Who: Ours, Value: rate(size, down), Unit: "MB/s", Goal: ">= 400"})
	return nil
}

func (m *Meter) download(ctx context.Context, id string, size int64) error {
	body, _, err := m.Client.ReadFile(ctx, id, transferFile)
	if err != nil {
		return err
	}
	defer body.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, body, make([]byte, 1<<20))
	if err == nil && n != size {
		err = fmt.Errorf("%d of %d bytes came back", n, size)
	}
	return err
}

// rate is the median in MB/s.
func rate(size int64, s *Series) float64 {
	if t := s.Percentile(50).Seconds(); t > 0 {
		return float64(int64(float64(size)/1e5/t)) / 10
	}
	return 0
}

func bytesText(n int64) string {
	if n%(1<<30) == 0 {
		return fmt.Sprintf("%d GiB", n>>30)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// noise is endless random bytes: one random megabyte again and again, which
// costs the measuring side next to nothing.
type noise struct {
	block []byte
	next  int
}

func newNoise() *noise {
	n := &noise{block: make([]byte, 1<<20)}
	_, _ = rand.NewChaCha8([32]byte{}).Read(n.block) // never fails
	return n
}

func (n *noise) Read(p []byte) (int, error) {
	k := copy(p, n.block[n.next:])
	n.next = (n.next + k) % len(n.block)
	return k, nil
}
