package mcpgateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	maxMessage = 16 << 20 // bytes of a message of a server
	maxPages   = 100      // of a list
	maxItems   = 5000     // of a list
	startLimit = 60 * time.Second
)

// protocols are the supported versions of MCP, the newest first.
var protocols = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// message is a JSON-RPC message.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

// rpcError is the error of a request.
type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *rpcError) Error() string { return e.Message }

// Codes of JSON-RPC.
const (
	invalidRequest = -32600
	noMethod       = -32601
	invalidParams  = -32602
	internalError  = -32603
	parseError     = -32700
)

var errGone = errors.New("it has ended")

// session is a running server.
type session struct {
	name  string
	stdin io.WriteCloser
	done  chan struct{} // closed once it has ended
	// offers holds the kinds of items that it has: "tools", "prompts", "resources".
	offers map[string]bool

	write sync.Mutex // of stdin

	mu      sync.Mutex
	last    int64
	waiting map[string]chan message // by ID
	stale   bool                    // its lists have changed
}

// start starts a server and returns once it has answered.
func start(ctx context.Context, s server) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	cmd := exec.Command(s.command[0], s.command[1:]...)
	cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), s.env...), s.dir, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("it does not start: %w", err)
	}
	ses := &session{name: s.name, stdin: stdin, done: make(chan struct{}), waiting: map[string]chan message{}, offers: map[string]bool{}}
	go func() {
		defer close(ses.done)
		err := ses.read(stdout)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // a server that violates the protocol is useless
		log.Printf("the server %s has ended: %v, %v", s.name, err, cmd.Wait())
	}()
	if err := ses.initialize(ctx); err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return nil, fmt.Errorf("it does not answer as an MCP server: %w", err)
	}
	return ses, nil
}

func (s *session) initialize(ctx context.Context) error {
	raw, err := s.call(ctx, "initialize", json.RawMessage(`{"protocolVersion":"`+protocols[0]+`","capabilities":{},"clientInfo":{"name":"mcp-gateway","version":"1"}}`))
	if err != nil {
		return err
	}
	var told struct {
		Capabilities map[string]json.RawMessage `json:"capabilities"`
	}
	if err := json.Unmarshal(raw, &told); err != nil {
		return err
	}
	for kind := range told.Capabilities {
		s.offers[kind] = true
	}
	return s.send(message{Method: "notifications/initialized"})
}

// read handles the server's messages until its end.
func (s *session) read(stdout io.Reader) error {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(make([]byte, 0, 64<<10), maxMessage)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			log.Printf("the server %s sent an invalid message", s.name)
			continue
		}
		s.take(m)
	}
	return lines.Err()
}

// take handles a message of the server.
func (s *session) take(m message) {
	switch {
	case m.Method != "" && m.ID != nil:
		answer := message{ID: m.ID, Error: &rpcError{Code: noMethod, Message: "the gateway does not do that"}}
		if m.Method == "ping" {
			answer.Error, answer.Result = nil, json.RawMessage(`{}`)
		}
		go func() { _ = s.send(answer) }() // a server that does not read must not block our reading
	case m.Method != "":
		s.mu.Lock()
		s.stale = s.stale || strings.HasSuffix(m.Method, "/list_changed")
		s.mu.Unlock()
	default:
		s.mu.Lock()
		to := s.waiting[string(m.ID)]
		delete(s.waiting, string(m.ID))
		s.mu.Unlock()
		if to != nil {
			to <- m // it has capacity
		}
	}
}

func (s *session) send(m message) error {
	m.JSONRPC = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	s.write.Lock()
	defer s.write.Unlock()
	_, err = s.stdin.Write(append(line, '\n'))
	return err
}

// call sends a request to the server and returns its result; an *rpcError is its
// answer.
func (s *session) call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	answer := make(chan message, 1)
	s.mu.Lock()
	s.last++
	id := strconv.FormatInt(s.last, 10)
	s.waiting[id] = answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waiting, id)
	}()
	if err := s.send(message{ID: json.RawMessage(id), Method: method, Params: params}); err != nil {
		return nil, errors.Join(errGone, err)
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return nil, m.Error
		}
		return m.Result, nil
	case <-s.done:
		return nil, errGone
	case <-ctx.Done():
		go func() {
			_ = s.send(message{Method: "notifications/cancelled", Params: json.RawMessage(`{"requestId":` + id + `,"reason":"the client has left"}`)})
		}()
		return nil, ctx.Err()
	}
}

// list returns all items of a list of the server, which may have several pages.
func (s *session) list(ctx context.Context, method, field string) (items []json.RawMessage, err error) {
	cursor := ""
	for range maxPages {
		params := json.RawMessage(`{}`)
		if cursor != "" {
			if params, err = json.Marshal(map[string]string{"cursor": cursor}); err != nil {
				return nil, err
			}
		}
		raw, err := s.call(ctx, method, params)
		if err != nil {
			return nil, err
		}
		var page map[string]json.RawMessage
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("its list cannot be read: %w", err)
		}
		var some []json.RawMessage
		if err := json.Unmarshal(page[field], &some); err != nil {
			return nil, fmt.Errorf("its list has no %s: %w", field, err)
		}
		if items = append(items, some...); len(items) > maxItems {
			return nil, fmt.Errorf("it has more than %d %s", maxItems, field)
		}
		cursor = ""
		if next := page["nextCursor"]; next != nil {
			if err := json.Unmarshal(next, &cursor); err != nil {
				return nil, fmt.Errorf("its next page cannot be read: %w", err)
			}
		}
		if cursor == "" {
			return items, nil
		}
	}
	return nil, fmt.Errorf("its list has more than %d pages", maxPages)
}

// changed reports, once, whether the server's lists have changed.
func (s *session) changed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.stale
	s.stale = false
	return was
}

func (s *session) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}
