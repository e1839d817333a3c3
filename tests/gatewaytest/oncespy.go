package gatewaytest

import (
	"context"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// OnceSpy remembers what was begun last, and the answers that were stored.
type OnceSpy struct {
	sandbox.OnceStore
	mu       sync.Mutex
	begun    sandbox.Once
	finished [][]byte
}

func (s *OnceSpy) FinishOnce(ctx context.Context, o sandbox.Once) error {
	s.mu.Lock()
	s.finished = append(s.finished, o.Answer)
	s.mu.Unlock()
	return s.OnceStore.FinishOnce(ctx, o)
}

// Answers returns the stored answers, the oldest first.
func (s *OnceSpy) Answers() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finished
}

func (s *OnceSpy) BeginOnce(ctx context.Context, o sandbox.Once, expired time.Time) (sandbox.Once, bool, error) {
	s.mu.Lock()
	s.begun = o
	s.mu.Unlock()
	return s.OnceStore.BeginOnce(ctx, o, expired)
}

// Last returns what was begun last.
func (s *OnceSpy) Last() sandbox.Once {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}
