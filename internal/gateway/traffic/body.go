package traffic

import (
	"io"
	"net/http"
	"sync/atomic"

	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/linger"
)

// body is that of a request. It knows whether it was read to its end.
type body struct {
	io.ReadCloser
	ends  func() // called before its reader learns of the end, when the trailers are there
	ended atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF && !b.ended.Swap(true) {
		b.ends()
	}
	return n, err
}

// closeUnread has the connection of an HTTP/1 request closed after its answer
// when b, its body, was not read to its end. By itself the server of net/http may
// take the rest of the body for the next request, where the answer went out
// while the body was still read: what follows would be for the sender of the body
// to choose, also behind a proxy that sends requests of many by one connection.
func (b *body) closeUnread(w http.ResponseWriter, r *http.Request) {
	if !b.ended.Load() && r.ProtoMajor == 1 {
		linger.Close(w)
	}
}
