package processes

import (
	"context"
	"errors"
	"sync"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/contexts"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// Cell is code for a context.
type Cell struct {
	Target  contexts.Target
	Request contexts.Request // without its Timeout and limits, which are the Process's
}

// maxTraceback bounds the traceback that goes to the output, in bytes.
const maxTraceback = 64 << 10

// cell is code that runs in a context, as a Process. It keeps the values that the
// code returns beside output, and is a contexts.Handler.
type cell struct {
	process   *Process
	budget    *budget
	interrupt func()        // ends the running code and leaves the state
	begun     chan struct{} // closed once the code has begun; started is set

	mu      sync.Mutex
	started contexts.Started
	values  []value
	size    int64 // bytes of values
	lost    int64 // number of values that were dropped
	failure *guestv1.ContextError
	result  contexts.Result
	err     error // why it did not begin
}

// value is a value that the code returned, and its position: the offset in the
// output.
type value struct {
	after   int64
	message *guestv1.ContextResult
}

// Started implements contexts.Handler.
func (c *cell) Started(s contexts.Started) error {
	c.mu.Lock()
	c.started = s
	c.mu.Unlock()
	close(c.begun)
	return nil
}

// Output implements contexts.Handler.
func (c *cell) Output(stderr bool, data []byte) error {
	c.process.output.append(stderr, data)
	return nil
}

// Result implements contexts.Handler.
func (c *cell) Result(main bool, data map[string]string) error {
	size := int64(0)
	for kind, content := range data {
		size += int64(len(kind) + len(content))
	}
	_, end := c.process.output.bounds()
	c.mu.Lock()
	c.values = append(c.values, value{end, &guestv1.ContextResult{Main: main, Data: data}})
	c.size += size
	c.mu.Unlock()
	c.budget.add(size)
	c.process.output.poke()
	return nil
}

// Error implements contexts.Handler. The traceback goes to stderr, as a program
// would print it.
func (c *cell) Error(name, text, traceback string) error {
	c.process.output.append(true, []byte(traceback[:min(len(traceback), maxTraceback)]))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = &guestv1.ContextError{Name: name, Value: text, Traceback: traceback}
	return nil
}

// valueAt returns the value of a number, from 0; false when the cell has fewer values
// so far.
func (c *cell) valueAt(n int) (value, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n >= len(c.values) {
		return value{}, false
	}
	return c.values[n], true
}

// drop frees the values. It may be called only after the cell has ended.
func (c *cell) drop() {
	c.mu.Lock()
	size := c.size
	c.lost += int64(len(c.values))
	c.values, c.size = nil, 0
	c.mu.Unlock()
	c.budget.add(-size)
}

// startCell runs code in a context, as p.
func (r *Registry) startCell(p *Process, spec Spec) error {
	where, err := r.contexts.Default(spec.Cell.Target)
	if err != nil {
		return err
	}
	p.Command = server.Command{Cwd: where.Cwd, User: server.User{Name: where.User}}
	if spec.Cell.Request.Cwd != "" {
		p.Command.Cwd = spec.Cell.Request.Cwd
	}
	p.cell = &cell{
		process: p, budget: &r.budget, begun: make(chan struct{}),
		interrupt: func() { _, _ = r.contexts.Interrupt(where.ID) },
	}
	req := spec.Cell.Request
	req.Timeout = spec.Timeout
	go func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		over := make(chan struct{})
		defer close(over)
		go func() {
			select {
			case <-p.stop:
				p.output.hurry() // the interpreter must not wait for followers
				cancel()
			case <-over:
			}
		}()
		result, err := r.contexts.Execute(ctx, spec.Cell.Target, req, p.cell)
		p.finishCell(r, result, err)
	}()
	return nil
}

// finishCell records how a cell ended, or that it did not begin: such a cell is not
// kept.
func (p *Process) finishCell(r *Registry, result contexts.Result, err error) {
	p.cell.mu.Lock()
	p.cell.result, p.cell.err = result, err
	p.cell.mu.Unlock()
	end := result.RunResult
	if err != nil {
		end = server.RunResult{Status: server.StatusError, Message: err.Error()}
		if errors.Is(err, context.Canceled) {
			end = server.RunResult{Status: server.StatusKilled}
		} else {
			<-p.placed
			r.withdraw(p)
		}
	}
	p.finish(end)
}
