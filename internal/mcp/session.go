package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

const (
	// idleTime is the time without a call after which the Sandbox of a Session pauses,
	// even if the client has not ended the Session.
	idleTime = 10 * time.Minute
	// leaveTime bounds the pause at the end of a Session.
	leaveTime = 20 * time.Second
	// metadataKey marks the Sandboxes of Sessions.
	metadataKey = "mcp"
)

// Options describe the Sandbox of a Session.
type Options struct {
	// Create describes a new Sandbox. Its Name is the name of the Session: an existing
	// Sandbox with this name is used. Empty: each Session has its own Sandbox.
	Create v1.CreateRequest
}

// Session is one conversation with a client: its credential, and the Sandbox that its
// tools use. Its methods are safe for concurrent use.
type Session struct {
	client  *client.Client
	options Options
	calls   chan struct{} // one for each running call

	turn chan struct{} // held during the search for the Sandbox
	mu   sync.Mutex
	own  string // ID of the Sandbox; empty: not known yet
}

func newSession(c *client.Client, o Options) *Session {
	return &Session{client: c, options: o, calls: make(chan struct{}, maxCalls), turn: make(chan struct{}, 1)}
}

// sandbox returns the Sandbox of a call: the Sandbox that the call names, or the
// Session's own, which is created on first use.
func (s *Session) sandbox(ctx context.Context, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	if own := s.known(); own != "" {
		return own, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if own := s.known(); own != "" {
		return own, nil
	}
	r := s.options.Create
	r.TimeoutSeconds, r.IdleTimeoutSeconds, r.OnTimeout = v1.SecondsOf(sandbox.MaxTimeout), v1.SecondsOrNone(idleTime), sandbox.OnTimeoutPause
	r.Metadata = map[string]string{metadataKey: "session"}
	if r.Name != "" {
		r.IfExists = sandbox.IfExistsReturn
	}
	made, err := s.client.Create(ctx, r)
	if err != nil {
		return "", err
	}
	s.use(made.ID)
	return made.ID, nil
}

func (s *Session) known() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own
}

// use makes a Sandbox the Session's own.
func (s *Session) use(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = id
}

// lost handles a failure of a call that used the Session's own Sandbox. If the
// Sandbox has ended, the error says so, and the next call gets a new Sandbox.
func (s *Session) lost(ctx context.Context, failed error) error {
	own := s.known()
	switch sandbox.CodeOf(failed) {
	case sandbox.NotFound, sandbox.Conflict, sandbox.Unavailable:
	default:
		return failed
	}
	if own == "" || ctx.Err() != nil {
		return failed
	}
	sb, err := s.client.Get(ctx, own)
	cause := ""
	switch {
	case sandbox.CodeOf(err) == sandbox.NotFound:
	case err != nil || sb.Ended == nil:
		return failed
	default:
		cause = " (" + string(sb.Ended.Cause) + ")"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == own {
		s.own = ""
	}
	return sandbox.Errorf(sandbox.Conflict, "the sandbox %s of this session has ended%s, and its files are gone: the next call creates a new one", own, cause)
}

// leave ends a Session whose calls are cancelled. It waits for the calls, and pauses
// the Session's own Sandbox, if any, unless keep reports that others use it. ctx
// carries the credential and may have ended.
func (s *Session) leave(ctx context.Context, keep func(id string) bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	for range maxCalls {
		select {
		case s.calls <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	own := s.known()
	if own == "" || keep(own) {
		return nil
	}
	sb, err := s.client.Get(ctx, own)
	if err != nil || sb.State != sandbox.Running {
		return err
	}
	_, err = s.client.Pause(ctx, own, false)
	return err
}

// NameFor returns the Session's name for a client that works in a folder of a
// machine. It is always the same, and a valid name of a Sandbox.
func NameFor(machine, folder string) string {
	sum := sha256.Sum256([]byte(machine + "\x00" + folder))
	base := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, filepath.Base(folder))
	const most = 40
	base = strings.Trim(base[:min(len(base), most)], "-")
	if base != "" {
		base += "-"
	}
	return "mcp-" + base + hex.EncodeToString(sum[:4])
}
