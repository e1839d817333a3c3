// Package linger ends HTTP/1 connections whose request was answered before all
// of its body was read.
package linger

import (
	"io"
	"net/http"
	"strings"
)

// Close has the connection of an HTTP/1 request closed after its answer, and not
// before the client had a moment to read that: a connection that is closed while
// its client still sends is reset, and the answer lost with it (RFC 9112, section
// 9.6). w may be wrapped. It is called before the handler returns, also when the
// head of the answer is sent.
func Close(w http.ResponseWriter) {
	for {
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = inner.Unwrap()
	}
	// A body beyond its limit is the one way to tell the server of net/http.
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
}
