package v1

import (
	"fmt"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Failure is an error as clients see it. It is an error itself: errors.Is finds its
// Code.
type Failure struct {
	Code    sandbox.Code `json:"code"`
	Message string       `json:"message"`
	// RetryAfterSeconds is set if the request had no effect and may succeed later.
	RetryAfterSeconds int `json:"retry_after_seconds,omitempty"`
	Status            int `json:"-"` // of HTTP
}

// FailureBody is the body of every response that is not a success.
type FailureBody struct {
	Error Failure `json:"error"`
}

// Error returns the code and the message.
func (f Failure) Error() string { return fmt.Sprintf("%s: %s", f.Code, f.Message) }

// Unwrap makes errors.Is find the Code.
func (f Failure) Unwrap() error { return f.Code }
