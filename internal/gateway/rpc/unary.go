package rpc

import (
	"context"
	"fmt"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// Unary is an operation that a call of one request and one answer carries out.
type Unary struct {
	*rest.Unary
	// HasID reports whether REST has the ID of the object in its path. The message has it
	// in the field that Takes lacks.
	HasID bool
}

// message is a message of any type, for handlers of any call.
type message struct{ proto.Message }

// unary returns the handler of a call that carries out an operation. It panics for a
// request with a field that the operation does not take: that is a bug.
func unary(procedure string, method protoreflect.MethodDescriptor, op Unary, options ...connect.HandlerOption) http.Handler {
	request, response := typeOf(method.Input()), typeOf(method.Output())
	id := idOf(method, op)
	// REST has the IDs of Sandboxes and of objects in them in bodies and queries too, and
	// says when they are missing. Nothing has an empty ID, so other objects are not found.
	needed := method.Input().Fields().ByName("sandbox_id") != nil
	return connect.NewUnaryHandler(procedure, func(ctx context.Context, r *connect.Request[message]) (*connect.Response[message], error) {
		asked := r.Msg.ProtoReflect()
		c := rest.Call{Who: callOf(ctx).who}
		if id != nil {
			c.ID = asked.Get(id).String()
			if c.ID == "" && needed {
				return nil, sandbox.Errorf(sandbox.Invalid, "%s is missing", id.Name())
			}
			rest.Named(ctx, c.ID)
		}
		answer, err := op.Do(ctx, c, func(takes any) error { return take(takes, r.Msg) })
		if err != nil {
			return nil, err
		}
		return connect.NewResponse(&message{messageOf(response.New().Interface(), answer)}), nil
	}, append(options, connect.WithSchema(method), connect.WithRequestInitializer(func(_ connect.Spec, m any) error {
		m.(*message).Message = request.New().Interface()
		return nil
	}))...)
}

// typeOf is the generated type of a message.
func typeOf(d protoreflect.MessageDescriptor) protoreflect.MessageType {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(fmt.Sprintf("rpc: %s has no type: %v", d.FullName(), err))
	}
	return t
}

// idOf is the field with the ID of the call's object; nil if the operation takes no ID.
func idOf(method protoreflect.MethodDescriptor, op Unary) protoreflect.FieldDescriptor {
	lacked := planOf(method.Input(), op.Takes).lacked
	switch {
	case !op.HasID && len(lacked) == 0:
		return nil
	case op.HasID && len(lacked) == 1 && lacked[0].Kind() == protoreflect.StringKind:
		return lacked[0]
	}
	panic(fmt.Sprintf("rpc: %s has fields that its operation does not take: %v", method.FullName(), lacked))
}
