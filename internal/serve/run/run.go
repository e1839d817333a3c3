// Package run starts the parts of a process and stops them in reverse.
package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// stopLimit is how long one part may take to stop.
const stopLimit = 20 * time.Second

// Parts are the long-running parts of a process. The zero value has none. It is not safe
// for concurrent use.
type Parts struct {
	parts []*part
	ended chan *part // gets each part when it returns
	once  sync.Once
}

type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid once done is closed
}

// Start runs a part in the background until Wait ends its context. Start dependencies
// first.
func (p *Parts) Start(name string, run func(context.Context) error) {
	p.once.Do(func() { p.ended = make(chan *part, 64) })
	ctx, cancel := context.WithCancel(context.Background())
	one := &part{name: name, cancel: cancel, done: make(chan struct{})}
	p.parts = append(p.parts, one)
	ended := p.ended
	go func() {
		defer func() {
			close(one.done)
			ended <- one
		}()
		one.err = run(ctx)
	}()
}

// Wait returns when every part has returned. When ctx ends, or a part fails, it stops the
// parts one after the other, in reverse order of their starts. It returns the errors of
// all parts that failed by themselves; nil after an orderly stop. A part that does not
// stop in 20 seconds is named in the error and left running.
func (p *Parts) Wait(ctx context.Context) error {
	p.untilStop(ctx)
	var errs []error
	for i := len(p.parts) - 1; i >= 0; i-- {
		errs = append(errs, p.parts[i].stop())
	}
	return errors.Join(errs...)
}

// untilStop waits for a reason to stop: ctx, a failure, or no part left.
func (p *Parts) untilStop(ctx context.Context) {
	for left := len(p.parts); left > 0; left-- {
		select {
		case one := <-p.ended:
			if one.err != nil {
				return // stop returns its error
			}
		case <-ctx.Done():
			return
		}
	}
}

// stop ends the part's context and waits for it.
func (p *part) stop() error {
	select {
	case <-p.done:
		p.cancel()
		if p.err != nil { // before it was stopped
			return fmt.Errorf("%s: %w", p.name, p.err)
		}
		return nil
	default:
	}
	p.cancel()
	timer := time.NewTimer(stopLimit)
	defer timer.Stop()
	select {
	case <-p.done:
		if p.err != nil && !errors.Is(p.err, context.Canceled) {
			return fmt.Errorf("%s: %w", p.name, p.err)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("%s did not stop in %v", p.name, stopLimit)
	}
}
