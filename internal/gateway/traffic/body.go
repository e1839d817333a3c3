package traffic

import (
	"io"
	"net/http"
	"sync/atomic"

	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/linger"
)

// body is a request body that records whether it was read to its end.
type body struct {
	io.ReadCloser
	ends  func() // called before the reader gets io.EOF, when the trailers are set
	ended atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF && !b.ended.Swap(true) {
		b.ends()
	}
	return n, err
}

// closeUnread closes the connection of an HTTP/1 request after its answer when b, its
// body, was not read to its end. net/http's server alone may parse the rest of the body
// as the next request, when the answer was sent while the body was still read. The
// body's sender would choose that request, also behind a proxy that shares one
// connection among clients.
func (b *body) closeUnread(w http.ResponseWriter, r *http.Request) {
	if !b.ended.Load() && r.ProtoMajor == 1 {
		linger.Close(w)
	}
}
