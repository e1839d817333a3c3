package rpc

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

const (
	// IdempotencyKey is the header of a request that must take effect once.
	IdempotencyKey = "Idempotency-Key"
	// Replayed is the header of an answer that is a stored one.
	Replayed = "Idempotent-Replayed"
)

// OnceCall is a call with the header IdempotencyKey.
type OnceCall struct {
	Tenant    sandbox.TenantID
	Procedure string
	Keys      []string      // values of the header
	Request   proto.Message // nil: a stream
}

// Once makes a call with the header idempotent, if its operation takes effect once. It
// fills repeated with the answer of an earlier call and returns true, or carries the
// call out with do, which returns the answer.
type Once func(ctx context.Context, call OnceCall, repeated proto.Message, do func(context.Context) (proto.Message, error)) (bool, error)

// WrapUnary implements connect.Interceptor.
func (once Once) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (res connect.AnyResponse, err error) {
		keys := r.Header().Values(IdempotencyKey)
		request, message := r.Any().(proto.Message)
		method, described := r.Spec().Schema.(protoreflect.MethodDescriptor)
		if len(keys) == 0 || !message || !described {
			return next(ctx, r)
		}
		answer := dynamicpb.NewMessage(method.Output())
		call := OnceCall{tenantOf(ctx), r.Spec().Procedure, keys, request}
		ran := false
		repeated, err := once(ctx, call, answer, func(ctx context.Context) (proto.Message, error) {
			ran = true
			if res, err = next(ctx, r); err != nil {
				return nil, err
			}
			return res.Any().(proto.Message), nil // every service's answer is a message
		})
		if !ran {
			nameTarget(ctx, request)
		}
		if err != nil || !repeated {
			return res, err
		}
		again := connect.NewResponse(answer)
		again.Header().Set(Replayed, "true")
		return again, nil
	}
}

// nameTarget sets the target of the audit entry for a call whose handler did not run.
func nameTarget(ctx context.Context, request proto.Message) {
	m := request.ProtoReflect()
	for _, name := range []protoreflect.Name{"key_id", "sandbox_id"} {
		if id := m.Descriptor().Fields().ByName(name); id != nil {
			rest.Named(ctx, m.Get(id).String())
			return
		}
	}
}

// WrapStreamingHandler implements connect.Interceptor. With the header, Once refuses a
// stream of an operation that takes effect once: a stream cannot be repeated.
func (once Once) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		keys := conn.RequestHeader().Values(IdempotencyKey)
		if len(keys) == 0 {
			return next(ctx, conn)
		}
		call := OnceCall{Tenant: tenantOf(ctx), Procedure: conn.Spec().Procedure, Keys: keys}
		_, err := once(ctx, call, nil, func(ctx context.Context) (proto.Message, error) { return nil, next(ctx, conn) })
		return err
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (Once) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}
