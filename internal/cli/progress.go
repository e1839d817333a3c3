package cli

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Delay and interval of the progress display.
const (
	showAfter = 500 * time.Millisecond
	showEvery = 200 * time.Millisecond
)

// progress counts bytes and shows them on a terminal.
type progress struct {
	what  string
	total int64 // bytes; -1: not known
	done  atomic.Int64
	began time.Time
	out   io.Writer // nil: nothing is shown

	stopOnce sync.Once
	stopped  chan struct{}
	shown    sync.WaitGroup
}

// progress starts a progress display; stop ends it.
func (t *transfer) progress(what string, total int64) *progress {
	p := &progress{what: clean(what), total: total, began: time.Now(), stopped: make(chan struct{})}
	if !t.options.quiet && telemetry.IsTerminal(t.stderr) {
		p.out = t.stderr
		p.shown.Go(p.run)
	}
	return p
}

func (p *progress) bytes() int64 { return p.done.Load() }

// stop removes the progress display. It may be called again.
func (p *progress) stop() {
	p.stopOnce.Do(func() { close(p.stopped) })
	p.shown.Wait()
}

func (p *progress) run() {
	wait := time.NewTimer(showAfter)
	defer wait.Stop()
	for painted := false; ; painted = true {
		select {
		case <-p.stopped:
			if painted {
				fmt.Fprint(p.out, "\r\x1b[K")
			}
			return
		case now := <-wait.C:
			fmt.Fprintf(p.out, "\r\x1b[K%s", p.line(now))
			wait.Reset(showEvery)
		}
	}
}

// line returns the text of the progress display.
func (p *progress) line(now time.Time) string {
	done := p.done.Load()
	text := fmt.Sprintf("%.60s  %s", p.what, size(done))
	if p.total > 0 {
		text += fmt.Sprintf(" of %s, %d %%", size(p.total), min(done*100/p.total, 100))
	}
	if spent := now.Sub(p.began).Seconds(); spent > 0 {
		text += fmt.Sprintf("  %s/s", size(int64(float64(done)/spent)))
	}
	return text
}

// size formats a number of bytes for people.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n)/1024, 0
	for f >= 1024 {
		f, unit = f/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", f, units[unit])
}

// reader counts the bytes read from r.
func (p *progress) reader(r io.Reader) io.Reader { return &counting{r, p} }

type counting struct {
	io.Reader
	p *progress
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.p.done.Add(int64(n))
	return n, err
}
