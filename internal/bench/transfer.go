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

// Transfer measures sending size bytes into a Sandbox's file and reading them back,
// rounds times, and adds the median rates as Facts in MB/s. The bytes are random and
// so incompressible.
func (m *Meter) Transfer(ctx context.Context, size int64, rounds int) error {
	up := &Series{Operation: Upload(size)}
	down := &Series{Operation: Download(size)}
	m.Report.Begin()
	err := m.within(ctx, func(id string) error {
		err := Repeat(ctx, up, rounds, func(ctx context.Context) (time.Duration, error) {
			return timed(func() error {
				_, err := m.Client.WriteFile(ctx, id, transferFile, io.LimitReader(Noise(), size), size)
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
	return errors.Join(m.addRate(ctx, up, size, goalUpload), m.addRate(ctx, down, size, goalDownload))
}

// Upload and Download name transfers of a size.
func Upload(size int64) string   { return "upload of " + bytesText(size) + " to a file" }
func Download(size int64) string { return "download of " + bytesText(size) + " from a file" }

// addRate adds the median rate of s, whose operations each moved size bytes, as a
// Fact, with its rival's rate.
func (m *Meter) addRate(ctx context.Context, s *Series, size int64, goal string) error {
	rival, err := m.beside(ctx, s.Operation)
	f := rateOf(s, size)
	f.Who, f.Goal = Ours, goal
	if rival != nil {
		f.Rival = new(rateOf(rival, size))
	}
	m.Report.AddFact(f)
	return err
}

func rateOf(s *Series, size int64) Fact {
	return Fact{What: s.Operation, Who: s.Who, Value: rate(size, s), Unit: "MB/s"}
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

// noise repeats one random megabyte without end, at almost no cost for the measuring
// side.
type noise struct {
	block []byte
	next  int
}

// Noise returns endless incompressible bytes.
func Noise() io.Reader {
	n := &noise{block: make([]byte, 1<<20)}
	_, _ = rand.NewChaCha8([32]byte{}).Read(n.block) // never fails
	return n
}

func (n *noise) Read(p []byte) (int, error) {
	k := copy(p, n.block[n.next:])
	n.next = (n.next + k) % len(n.block)
	return k, nil
}
