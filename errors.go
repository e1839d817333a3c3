package sandbox

import (
	"errors"
	"fmt"
	"time"
)

// A Code classifies a failure by the caller's remedy. It is itself an error, so that
// errors.Is(err, sandbox.NotFound) works through any wrapping.
type Code string

const (
	Invalid     Code = "invalid"         // fix the request
	Anonymous   Code = "unauthenticated" // authenticate
	Denied      Code = "denied"          // this identity is not allowed to
	TooLarge    Code = "too_large"       // send less
	Timeout     Code = "timeout"         // it took longer than the requested timeout
	NotFound    Code = "not_found"       // absent, or another Tenant's: never reveal which
	Conflict    Code = "conflict"        // the state changed: read again, then decide
	Exhausted   Code = "exhausted"       // quota or capacity: wait RetryAfter
	Unsupported Code = "unsupported"     // this Engine cannot do it
	Unavailable Code = "unavailable"     // a component is unreachable: retry with backoff
	Internal    Code = "internal"        // a bug or fault of the server
)

// Codes lists every Code, for tables that must cover all.
func Codes() []Code {
	return []Code{
		Invalid, Anonymous, Denied, TooLarge, Timeout, NotFound,
		Conflict, Exhausted, Unsupported, Unavailable, Internal,
	}
}

func (c Code) Error() string { return string(c) }

// Error is a failure with a Code. A client sees Code and Detail; Cause is only
// logged.
type Error struct {
	Code   Code
	Detail string // one sentence, no secrets, no host paths
	// RetryAfter is the delay before sending the same request again. Clients retry
	// automatically, so it is set only if the request had no effect or is idempotent.
	// Zero: no advice.
	RetryAfter time.Duration
	Cause      error // may be nil
}

func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Detail
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap makes errors.Is find the Code, the Cause and the errors that the Cause wraps.
// It hides the Codes of Errors among these: a NotFound of a Boot, reported as
// Unavailable, is not a NotFound of the Sandbox.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Code}
	}
	return []error{e.Code, withoutCode{e.Cause}}
}

// withoutCode is a Cause to errors.Is and errors.As, but for its Codes.
type withoutCode struct{ cause error }

func (c withoutCode) Error() string { return c.cause.Error() }

// Is reports whether the cause is target, which is no Code.
func (c withoutCode) Is(target error) bool {
	_, code := target.(Code)
	return !code && errors.Is(c.cause, target)
}

// As is errors.As on the cause, except that it never finds a Code.
func (c withoutCode) As(target any) bool {
	_, code := target.(*Code)
	return !code && errors.As(c.cause, target)
}

// Errorf makes an Error without a Cause; the formatted text is public.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// WithCause returns a copy of e that carries cause, for logs.
func (e *Error) WithCause(cause error) *Error {
	c := *e
	c.Cause = cause
	return &c
}

// Begun returns err without its RetryAfter, for a request that may have had an effect.
func Begun(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.RetryAfter == 0 {
		return err
	}
	c := *e
	c.RetryAfter = 0
	if err != error(e) {
		c.Cause = err
	}
	return &c
}

// notBegunAdvice is when a request that had no effect is sent again after a part of the
// installation was away.
const notBegunAdvice = time.Second

// ErrUncertain is in the Cause of the Unavailable of a write that may have taken effect.
var ErrUncertain = errors.New("the write may have taken effect")

// ErrLost is in the Cause of LostRecord.
var ErrLost = errors.New("the record was lost")

// LostRecord is the Unavailable of a Sandbox whose record, written with CommitLater, a
// crash of the database server has lost while the Sandbox started.
func LostRecord() *Error {
	return Errorf(Unavailable, "the database lost the record of the sandbox while it started: send the request again").WithCause(ErrLost)
}

// NotBegun returns err with a RetryAfter, for a request that had no effect, if err is
// Unavailable and has none. An ErrUncertain stays as it is.
func NotBegun(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Code != Unavailable || e.RetryAfter != 0 || errors.Is(err, ErrUncertain) {
		return err
	}
	c := *e
	c.RetryAfter = notBegunAdvice
	if err != error(e) {
		c.Cause = err
	}
	return &c
}

// CodeOf returns the Code of err: Internal for an error that carries none, and
// the empty Code for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var code Code
	if errors.As(err, &code) {
		return code
	}
	return Internal
}

// ErrUnknown is the cause of an error about a path, field, parameter or procedure that
// this server does not know, and that another version may know.
var ErrUnknown = errors.New("not in this version of the API")
