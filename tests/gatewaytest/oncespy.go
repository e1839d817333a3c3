package gatewaytest

import (
	"context"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// OnceSpy records the last record that was begun, and the stored answers.
type OnceSpy struct {
	sandbox.IdempotencyStore
	mu       sync.Mutex
	begun    sandbox.IdempotencyRecord
	finished [][]byte
}

func (s *OnceSpy) FinishIdempotent(ctx context.Context, o sandbox.IdempotencyRecord, e sandbox.AuditEntry, started ...string) (sandbox.AuditMark, error) {
	s.mu.Lock()
	s.finished = append(s.finished, o.Answer)
	s.mu.Unlock()
	return s.IdempotencyStore.FinishIdempotent(ctx, o, e, started...)
}

// Answers returns the stored answers, the oldest first.
func (s *OnceSpy) Answers() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finished
}

func (s *OnceSpy) BeginIdempotent(ctx context.Context, o sandbox.IdempotencyRecord, expired time.Time) (sandbox.IdempotencyRecord, bool, error) {
	s.mu.Lock()
	s.begun = o
	s.mu.Unlock()
	return s.IdempotencyStore.BeginIdempotent(ctx, o, expired)
}

// Last returns the record that was begun last.
func (s *OnceSpy) Last() sandbox.IdempotencyRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}
