// Package linger closes HTTP/1 connections gracefully when a request was answered
// before all of its body was read.
package linger

import (
	"io"
	"net/http"
	"strings"
)

// Close closes the connection of an HTTP/1 request after its answer, once the client
// has had a moment to read it: a connection that is closed while its client still sends
// is reset, and the answer is lost (RFC 9112, section 9.6). w may be wrapped. Call
// Close before the handler returns; the head of the answer may have been sent.
func Close(w http.ResponseWriter) {
	for {
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = inner.Unwrap()
	}
	// Exceeding a body limit is the only way to make net/http's server do this.
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
}
