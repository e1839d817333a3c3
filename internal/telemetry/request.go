package telemetry

import (
	"context"
	"log/slog"
	"strings"
)

// RequestHeader carries the ID of a client's request, from the client and from
// role to role.
const RequestHeader = "X-Request-Id"

// maxRequest bounds the ID of a request, in bytes.
const maxRequest = 64

// ValidRequest reports whether id is harmless in a log: up to 64 of A-Z, a-z, 0-9, dot,
// underscore and dash, and not empty.
func ValidRequest(id string) bool {
	return id != "" && len(id) <= maxRequest && strings.IndexFunc(id, func(c rune) bool {
		return !('A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-')
	}) < 0
}

type requestKey struct{}

// WithRequest returns a context for the work of a client's request. Log records made
// with it carry id.
func WithRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

// RequestOf returns the ID of the request that ctx belongs to; empty when it belongs
// to none.
func RequestOf(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// requests is a slog.Handler that adds a request's ID to its lines, unless a line
// already has one.
type requests struct{ slog.Handler }

func (h requests) Handle(ctx context.Context, r slog.Record) error {
	if id := RequestOf(ctx); id != "" {
		named := false
		r.Attrs(func(a slog.Attr) bool {
			named = a.Key == KeyRequest
			return !named
		})
		if !named {
			r = r.Clone()
			r.AddAttrs(slog.String(KeyRequest, id))
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h requests) WithAttrs(attrs []slog.Attr) slog.Handler {
	return requests{h.Handler.WithAttrs(attrs)}
}
func (h requests) WithGroup(name string) slog.Handler { return requests{h.Handler.WithGroup(name)} }
