package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cloud-sandbox/cloud-sandbox"
	rpcv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/rpc/v1"
)

// connectCodes maps each Code to its code in Connect and gRPC.
var connectCodes = map[sandbox.Code]connect.Code{
	sandbox.Invalid:     connect.CodeInvalidArgument,
	sandbox.Anonymous:   connect.CodeUnauthenticated,
	sandbox.Denied:      connect.CodePermissionDenied,
	sandbox.TooLarge:    connect.CodeOutOfRange,
	sandbox.Timeout:     connect.CodeDeadlineExceeded,
	sandbox.NotFound:    connect.CodeNotFound,
	sandbox.Conflict:    connect.CodeFailedPrecondition,
	sandbox.Exhausted:   connect.CodeResourceExhausted,
	sandbox.Unsupported: connect.CodeUnimplemented,
	sandbox.Unavailable: connect.CodeUnavailable,
	sandbox.Internal:    connect.CodeInternal,
}

// internalDetail is the only message of an error without a Code.
const internalDetail = "an internal error"

// Public is err for a client of Connect or gRPC: without causes.
func Public(err error) *connect.Error { return failure(err, false) }

// internal is err for another role, with causes.
func internal(err error) *connect.Error { return failure(err, true) }

// failure is nil for nil. The end of a context has a code of its own and no detail.
func failure(err error, causes bool) *connect.Error {
	if err == nil {
		return nil
	}
	var e *sandbox.Error
	if !errors.As(err, &e) {
		switch {
		case errors.Is(err, context.Canceled):
			return connect.NewError(connect.CodeCanceled, errors.New("the request was cancelled"))
		case errors.Is(err, context.DeadlineExceeded):
			return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the request took too long"))
		}
		e = sandbox.Errorf(sandbox.CodeOf(err), internalDetail)
		if e.Code != sandbox.Internal {
			e.Detail = string(e.Code)
		}
	}
	told := &rpcv1.Failure{Code: string(e.Code), Message: e.Detail}
	if e.RetryAfter > 0 {
		told.RetryAfter = durationpb.New(e.RetryAfter)
	}
	told.OverQuota = causes && errors.Is(err, sandbox.ErrOverQuota)
	told.BeingBuilt = causes && errors.Is(err, sandbox.ErrBeingBuilt)
	told.LacksCpu = causes && errors.Is(err, sandbox.ErrCPU)
	told.Standby = causes && errors.Is(err, sandbox.ErrStandby)
	if text := err.Error(); causes && text != e.Error() {
		told.Cause = text
	} else if causes && e.Cause != nil {
		told.Cause = e.Cause.Error()
	}
	out := connect.NewError(connectCodes[e.Code], errors.New(e.Detail))
	if detail, err := connect.NewErrorDetail(told); err == nil {
		out.AddDetail(detail)
	}
	return out
}

// restore is the error that the other end of a call returned, or Unavailable when there
// was no answer from it.
func (p *peer) restore(ctx context.Context, err error) error {
	var remote *connect.Error
	if errors.As(err, &remote) && connect.IsWireError(err) {
		if e := detailOf(remote); e != nil {
			return e
		}
		switch remote.Code() {
		case connect.CodeCanceled, connect.CodeDeadlineExceeded:
			if _, limited := ctx.Deadline(); limited && ctx.Err() == nil {
				return context.DeadlineExceeded // the other end reached the deadline first
			}
			if ctx.Err() == nil {
				return sandbox.Errorf(sandbox.Timeout, "the %s gave up", p.role).WithCause(err)
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return p.broken(err)
}

// ErrRefused is in the Cause of an error for a call that the other end did not accept from this
// process: the clock, the certificate or the secret of one of them is wrong.
var ErrRefused = errors.New("the other end refuses the calls of this process")

// refused makes the refusal of this process Unavailable. It says nothing about the credentials
// of a Tenant, whose request may be the reason for the call. Nothing was done.
func refused(err error) error {
	if told := (*sandbox.Error)(nil); errors.As(err, &told) && told.Code == sandbox.Anonymous {
		return &sandbox.Error{
			Code: sandbox.Unavailable, Detail: "a part of the service refuses the calls of another one: their clocks may differ",
			RetryAfter: awayAdvice, Cause: fmt.Errorf("%w: %w", ErrRefused, err),
		}
	}
	return err
}

// broken is the error for a call without an answer. The call has begun at the other
// end, unless the dial failed.
func (p *peer) broken(err error) error {
	away := p.away(err)
	if op := (*net.OpError)(nil); !errors.As(err, &op) || op.Op != "dial" {
		return sandbox.Begun(away)
	}
	return away
}

// detailOf is the Error in a remote one; nil when it has none.
func detailOf(remote *connect.Error) *sandbox.Error {
	for _, d := range remote.Details() {
		value, err := d.Value()
		if err != nil {
			continue
		}
		if told, ok := value.(*rpcv1.Failure); ok {
			return errorOf(told)
		}
	}
	return nil
}

func errorOf(told *rpcv1.Failure) *sandbox.Error {
	e := &sandbox.Error{Code: sandbox.Code(told.Code), Detail: told.Message, RetryAfter: told.RetryAfter.AsDuration()}
	if !slices.Contains(sandbox.Codes(), e.Code) {
		e.Code = sandbox.Internal // from a later version
	}
	switch {
	case told.OverQuota:
		e.Cause = sandbox.ErrOverQuota
	case told.BeingBuilt:
		e.Cause = sandbox.ErrBeingBuilt
	case told.LacksCpu:
		e.Cause = sandbox.ErrCPU
	case told.Standby:
		e.Cause = sandbox.ErrStandby
	case told.Cause != "":
		e.Cause = errors.New(told.Cause)
	}
	return e
}
