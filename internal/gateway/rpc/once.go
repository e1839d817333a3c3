package rpc

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// IdempotencyKey is the header of a request that must take effect once.
	IdempotencyKey = "Idempotency-Key"
	// Replayed is the header of an answer that an earlier request got.
	Replayed = "Idempotent-Replayed"
)

// OnceCall is a unary call with the header IdempotencyKey.
type OnceCall struct {
	Tenant    sandbox.TenantID
	Procedure string
	Keys      []string // values of the header
	Request   proto.Message
}

// Once does a call that has the header, if it must take effect once: it fills repeated
// with the answer of an earlier call and reports true, or has do carry the call out.
// do returns the answer.
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
		repeated, err := once(ctx, call, answer, func(ctx context.Context) (proto.Message, error) {
			if res, err = next(ctx, r); err != nil {
				return nil, err
			}
			return res.Any().(proto.Message), nil // as every answer of a service
		})
		if err != nil || !repeated {
			return res, err
		}
		again := connect.NewResponse(answer)
		again.Header().Set(Replayed, "true")
		return again, nil
	}
}

// WrapStreamingHandler implements connect.Interceptor. The header says nothing in a
// stream.
func (Once) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// WrapStreamingClient implements connect.Interceptor.
func (Once) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}
