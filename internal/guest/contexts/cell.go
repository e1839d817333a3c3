package contexts

import (
	"strconv"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	maxResults     = 256
	maxResultBytes = 32 << 20 // of all results of one execution
	maxErrors      = 16
)

// Handler receives the events of an execution, one call at a time. An error ends
// it.
type Handler interface {
	Started(Started) error
	Output(stderr bool, data []byte) error
	// Result receives one value, by MIME type: bytes in base64, JSON as text.
	Result(main bool, data map[string]string) error
	Error(name, value, traceback string) error
}

// Started describes the context of an execution.
type Started struct {
	ContextID string
	Language  string
	Count     int64 // of the context, from 1
	Restarted bool  // the interpreter is not the previous execution's
}

// Request describes one execution.
type Request struct {
	Code                     string
	Stdin                    []byte
	Env                      map[string]string
	Cwd                      string        // absolute; empty: the context's current folder
	Timeout                  time.Duration // zero: none
	StdoutLimit, StderrLimit int64         // bytes; zero: no limit
}

// cell is one running execution in a worker. Its events come from the goroutines
// that read the worker.
type cell struct {
	request Request
	count   int64
	owner   lifetime
	env     map[string]string // variables of the owner's Sandbox
	handler Handler
	began   time.Time

	done   chan struct{} // closed when the worker reports the end
	code   int           // exit code, once done is closed
	broken chan struct{} // closed at the handler's first failure

	mu       sync.Mutex // held while the handler runs, which may be long
	detached bool
	err      error // of the handler
	sent     [2]int64
	lost     [2]int64
	results  int
	bytes    int
	dropped  int64
	errors   int
}

func newCell(req Request, count int64, owner lifetime, env map[string]string, h Handler) *cell {
	return &cell{
		request: req, count: count, owner: owner, env: env, handler: h, began: time.Now(),
		done: make(chan struct{}), broken: make(chan struct{}),
	}
}

// tell calls f unless the handler has failed or was detached. The caller holds
// c.mu.
func (c *cell) tell(f func() error) {
	if c.detached || c.err != nil {
		return
	}
	if c.err = f(); c.err != nil {
		close(c.broken)
	}
}

func (c *cell) output(stream int, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	limit := c.request.StdoutLimit
	if stream == 1 {
		limit = c.request.StderrLimit
	}
	if room := limit - c.sent[stream]; limit > 0 && int64(len(data)) > room {
		c.lost[stream] += int64(len(data)) - room
		data = data[:room]
	}
	c.sent[stream] += int64(len(data))
	if len(data) > 0 {
		c.tell(func() error { return c.handler.Output(stream == 1, data) })
	}
}

// result handles a value: whether it is the cell's own, then pairs of type and
// content.
func (c *cell) result(texts []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := 0
	data := map[string]string{}
	for i := 1; i < len(texts); i += 2 {
		data[texts[i]] = texts[i+1]
		size += len(texts[i]) + len(texts[i+1])
	}
	c.results++
	c.bytes += size
	if c.results > maxResults || c.bytes > maxResultBytes {
		c.dropped++
		return
	}
	c.tell(func() error { return c.handler.Result(texts[0] == "1", data) })
}

func (c *cell) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped++
}

func (c *cell) fail(name, value, traceback string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.errors++; c.errors <= maxErrors {
		c.tell(func() error { return c.handler.Error(name, value, traceback) })
	}
}

// finish records that the worker is done. Only the first call counts.
func (c *cell) finish(code string) {
	select {
	case <-c.done:
	default:
		c.code, _ = strconv.Atoi(code)
		c.code &= 0xff
		close(c.done)
	}
}

// over reports whether the worker is done.
func (c *cell) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// detach waits for the handler's current call and allows no other.
func (c *cell) detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.detached = true
}

// moment returns the start of the execution, or slightly earlier.
func (c *cell) moment() server.Moment { return server.Ago(time.Since(c.began)) }
