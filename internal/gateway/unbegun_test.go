package gateway

import (
	"errors"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A request whose key may or may not have been recorded was not carried out: its client may
// send it again.
func TestUnbegun(t *testing.T) {
	lost := sandbox.Errorf(sandbox.Unavailable, "the server was lost while it committed").WithCause(sandbox.ErrUncertain)
	var got *sandbox.Error
	if err := unbegun(lost); !errors.As(err, &got) || got.Code != sandbox.Unavailable || got.RetryAfter == 0 || errors.Is(err, sandbox.ErrUncertain) {
		t.Errorf("unbegun = %#v", err)
	}
	full := sandbox.Errorf(sandbox.Exhausted, "the disk is full")
	if err := unbegun(full); err != error(full) {
		t.Errorf("unbegun = %v, want it unchanged", err)
	}
}
