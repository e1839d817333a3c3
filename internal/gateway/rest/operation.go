package rest

import (
	"cmp"
	"context"
	"net/http"
	"reflect"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Call is one call of a Unary.
type Call struct {
	Who sandbox.Identity
	// ID is the ID or name of the object, which the path has as {id} or {template}.
	ID string
}

// Unary is an operation with one request and one answer. Every API calls it in the same
// way, and only translates.
type Unary struct {
	// Takes is the type of the request: the JSON body, together with the parameters of
	// the query. Gives is the type of the answer.
	Takes, Gives reflect.Type
	// Answer answers a request of REST.
	Answer Handler
	// Do carries out the operation. fill sets the request, to which it gets a pointer.
	Do func(ctx context.Context, c Call, fill func(request any) error) (answer any, err error)
}

// NewUnary returns the Unary of do. REST answers with status, unless the answer has a
// status of its own.
func NewUnary[In, Out any](status int, do func(context.Context, Call, *In) (Out, error)) *Unary {
	return &Unary{
		Takes: reflect.TypeFor[In](), Gives: reflect.TypeFor[Out](),
		Answer: func(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
			var in In
			if err := read(r, &in); err != nil {
				return err
			}
			out, err := do(r.Context(), Call{who, cmp.Or(r.PathValue("id"), r.PathValue("template"))}, &in)
			if err != nil {
				return err
			}
			return replyUnary(w, status, out)
		},
		Do: func(ctx context.Context, c Call, fill func(any) error) (any, error) {
			var in In
			if err := fill(&in); err != nil {
				return nil, err
			}
			return do(ctx, c, &in)
		},
	}
}

// reader is a request that is not only a JSON body.
type reader interface{ read(r *http.Request) error }

func read(r *http.Request, request any) error {
	if from, ok := request.(reader); ok {
		return from.read(r)
	}
	return Decode(r, request)
}

func replyUnary(w http.ResponseWriter, status int, answer any) error {
	if status == http.StatusNoContent {
		w.WriteHeader(status)
		return nil
	}
	if own, ok := answer.(interface{ status() int }); ok {
		status = own.status()
	}
	return Reply(w, status, answer)
}

// Nothing is a request or an answer without fields.
type Nothing struct{}

// read ignores the query, as of most requests for one object.
func (*Nothing) read(*http.Request) error { return nil }

// noQuery is a request without fields that refuses a query.
type noQuery struct{}

func (*noQuery) read(r *http.Request) error {
	_, err := query(r)
	return err
}
