package traffic

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"strings"
)

// framed passes an answer on and follows the messages of a Connect stream in it. Each
// message is a byte of flags, four bytes of length, and its content.
type framed struct {
	http.ResponseWriter
	stream bool    // the answer is a Connect stream
	head   [5]byte // of the current message
	got    int     // bytes of head
	left   uint32  // bytes of the message that are still to come
}

// The flag of a stream's last message, and the prefix of a stream's content type.
const (
	lastMessage   = 0b10
	connectStream = "application/connect+"
)

func (f *framed) WriteHeader(status int) {
	f.stream = status == http.StatusOK && strings.HasPrefix(f.Header().Get("Content-Type"), connectStream)
	f.ResponseWriter.WriteHeader(status)
}

func (f *framed) Write(b []byte) (int, error) {
	n, err := f.ResponseWriter.Write(b)
	if f.stream {
		f.follow(b[:n])
	}
	return n, err
}

// Unwrap lets http.ResponseController find the rest.
func (f *framed) Unwrap() http.ResponseWriter { return f.ResponseWriter }

func (f *framed) follow(b []byte) {
	for len(b) > 0 {
		if f.got < len(f.head) {
			n := copy(f.head[f.got:], b)
			f.got, b = f.got+n, b[n:]
			if f.got == len(f.head) {
				f.left = binary.BigEndian.Uint32(f.head[1:])
			}
		} else {
			n := min(uint64(f.left), uint64(len(b)))
			f.left, b = f.left-uint32(n), b[n:]
		}
		if f.got == len(f.head) && f.left == 0 {
			f.got = 0
		}
	}
}

// endBroken ends a stream that was cut between two messages with an error message, and
// reports whether it could. Without it clients report broken chunks to their users.
func (f *framed) endBroken(sandboxID string) bool {
	if !f.stream || f.got > 0 {
		return false
	}
	var end struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	end.Error.Code = "unavailable"
	end.Error.Message = "the connection to sandbox " + sandboxID + " ended before the stream completed"
	body, _ := json.Marshal(end) // strings only
	last := binary.BigEndian.AppendUint32([]byte{lastMessage}, uint32(len(body)))
	_, err := f.ResponseWriter.Write(append(last, body...))
	return err == nil
}

// stream proxies r. It ends a Connect stream that is cut short inside with the error
// unavailable. Any other answer that is cut short is cut short for the client too.
func (p *Proxy) stream(w http.ResponseWriter, r *http.Request, sandboxID string) {
	f := &framed{ResponseWriter: w}
	defer func() {
		broken := recover()
		if broken == nil {
			return
		}
		// An answer that the client or this server has given up gets no more bytes.
		if broken != http.ErrAbortHandler || r.Context().Err() != nil || !f.endBroken(sandboxID) {
			panic(broken)
		}
	}()
	p.proxy.ServeHTTP(f, r)
}
