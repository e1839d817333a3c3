// Package status maps each failure to its form for clients. One table maps the Codes of
// the root package to each protocol's codes.
package status

import (
	"context"
	"errors"
	"math"
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// ClientClosed is the status in logs and metrics of a request whose client left
// before the answer. It is never sent.
const ClientClosed = 499

var httpStatus = map[sandbox.Code]int{
	sandbox.Invalid:     http.StatusBadRequest,
	sandbox.Anonymous:   http.StatusUnauthorized,
	sandbox.Denied:      http.StatusForbidden,
	sandbox.TooLarge:    http.StatusRequestEntityTooLarge,
	sandbox.Timeout:     http.StatusGatewayTimeout,
	sandbox.NotFound:    http.StatusNotFound,
	sandbox.Conflict:    http.StatusConflict,
	sandbox.Exhausted:   http.StatusTooManyRequests,
	sandbox.Unsupported: http.StatusNotImplemented,
	sandbox.Unavailable: http.StatusServiceUnavailable,
	sandbox.Internal:    http.StatusInternalServerError,
}

// HTTP returns the HTTP status of a Code; 500 for an unknown Code.
func HTTP(code sandbox.Code) int {
	if s, ok := httpStatus[code]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Of returns the part of err that a client may see: the Detail of an Error, a fixed
// sentence for a context error, and no detail of any other error.
func Of(err error) v1.Failure {
	var e *sandbox.Error
	var f v1.Failure
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &e):
		return failure(e)
	case errors.Is(err, context.DeadlineExceeded):
		return failure(sandbox.Errorf(sandbox.Timeout, "the request took too long"))
	case errors.Is(err, context.Canceled):
		return failure(sandbox.Errorf(sandbox.Unavailable, "the request was cancelled"))
	}
	code := sandbox.CodeOf(err)
	if code == sandbox.Internal {
		return failure(sandbox.Errorf(code, "an internal error; the request id in X-Request-Id finds it in the log"))
	}
	return failure(sandbox.Errorf(code, "%s", http.StatusText(HTTP(code))))
}

func failure(e *sandbox.Error) v1.Failure {
	f := v1.Failure{Code: e.Code, Message: e.Detail, Status: HTTP(e.Code)}
	if e.RetryAfter > 0 {
		f.RetryAfterSeconds = max(1, int(math.Ceil(e.RetryAfter.Seconds())))
	}
	return f
}

// MethodNotAllowed answers a known path's unsupported method.
func MethodNotAllowed(method string) v1.Failure {
	f := failure(sandbox.Errorf(sandbox.Invalid, "this path does not answer %.16q", method))
	f.Status = http.StatusMethodNotAllowed
	return f
}
