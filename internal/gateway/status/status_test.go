package status

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestEveryCodeHasAStatus(t *testing.T) {
	t.Parallel()
	for _, code := range sandbox.Codes() {
		if _, ok := httpStatus[code]; !ok {
			t.Errorf("%s has no HTTP status", code)
		}
	}
	if len(httpStatus) != len(sandbox.Codes()) {
		t.Errorf("%d statuses for %d codes", len(httpStatus), len(sandbox.Codes()))
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	secret := errors.New("open /srv/data/x: permission denied")
	for _, tt := range []struct {
		name    string
		err     error
		code    sandbox.Code
		status  int
		message string
		retry   int
	}{
		{"detail", sandbox.Errorf(sandbox.Conflict, "taken"), sandbox.Conflict, 409, "taken", 0},
		{"cause stays here", sandbox.Errorf(sandbox.Unavailable, "away").WithCause(secret), sandbox.Unavailable, 503, "away", 0},
		{"wrapped", fmt.Errorf("step: %w", sandbox.Errorf(sandbox.NotFound, "gone")), sandbox.NotFound, 404, "gone", 0},
		{"bare code", fmt.Errorf("x: %w", sandbox.Denied), sandbox.Denied, http.StatusForbidden, http.StatusText(http.StatusForbidden), 0},
		{"unclassified", secret, sandbox.Internal, 500, "an internal error; the request id in X-Request-Id finds it in the log", 0},
		{"deadline", fmt.Errorf("x: %w", context.DeadlineExceeded), sandbox.Timeout, 504, "the request took too long", 0},
		{"cancelled", context.Canceled, sandbox.Unavailable, 503, "the request was cancelled", 0},
		{"retry rounds up", &sandbox.Error{Code: sandbox.Exhausted, Detail: "full", RetryAfter: 1100 * time.Millisecond}, sandbox.Exhausted, 429, "full", 2},
		{"retry at least a second", &sandbox.Error{Code: sandbox.Exhausted, Detail: "full", RetryAfter: time.Millisecond}, sandbox.Exhausted, 429, "full", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := Of(tt.err)
			if f.Code != tt.code || f.Status != tt.status || f.Message != tt.message || f.RetryAfterSeconds != tt.retry {
				t.Errorf("Of(%v) = %+v", tt.err, f)
			}
		})
	}
}
