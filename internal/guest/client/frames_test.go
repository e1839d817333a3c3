package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

// answers is a transport whose answers have a kind and a body.
type answers struct {
	kind string
	body []byte
}

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{Header: http.Header{"Content-Type": {a.kind}}, Body: io.NopCloser(bytes.NewReader(a.body))}, nil
}

// framed is messages as a stream has them.
func framed(sizes ...int) (all []byte) {
	for _, n := range sizes {
		all = append(all, 0)
		all = binary.BigEndian.AppendUint32(all, uint32(n))
		all = append(all, make([]byte, n)...)
	}
	return all
}

// A large message of a stream counts until the next one begins, or the stream is
// closed; one that is the answer, until the request is over. What comes through is
// what came.
func TestLargeMessagesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mib = 1 << 20
		memory := spool.NewMemory(messageCopies*2*mib, messageCopies*2*mib)
		get := func(kind string, body []byte) (io.ReadCloser, func()) {
			ctx, over := memory.With(t.Context(), "t")
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := frames{answers{kind, body}}.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			return resp.Body, over
		}
		const stream = "application/connect+proto"
		sent := framed(2*mib, 10, 0, 2*mib)
		first, overFirst := get(stream, sent)
		defer overFirst()
		got := make([]byte, 5+2*mib)
		if _, err := io.ReadFull(first, got); err != nil {
			t.Fatal(err)
		}
		second, overSecond := get(stream, framed(mib))
		defer overSecond()
		if _, err := io.ReadAll(second); !errors.Is(err, sandbox.Exhausted) {
			t.Errorf("beside it: %v", err)
		}
		small := make([]byte, 5+10)
		if _, err := io.ReadFull(first, small); err != nil {
			t.Fatal(err)
		}
		third, overThird := get(stream, framed(2*mib))
		defer overThird()
		if all, err := io.ReadAll(third); err != nil || len(all) != 5+2*mib {
			t.Errorf("when the next one has begun: %d bytes, %v", len(all), err)
		}
		third.Close()
		rest, err := io.ReadAll(first)
		if all := append(append(got, small...), rest...); err != nil || !bytes.Equal(all, sent) {
			t.Errorf("%d bytes came through, %v", len(all), err)
		}
		first.Close()

		answer, overAnswer := get("application/proto", make([]byte, mib))
		if all, err := io.ReadAll(answer); err != nil || len(all) != mib {
			t.Errorf("one message: %d bytes, %v", len(all), err)
		}
		answer.Close()
		fourth, overFourth := get(stream, framed(mib))
		defer overFourth()
		if _, err := io.ReadAll(fourth); !errors.Is(err, sandbox.Exhausted) {
			t.Errorf("beside an answer: %v", err)
		}
		overAnswer()
		fifth, overFifth := get(stream, framed(mib))
		defer overFifth()
		if _, err := io.ReadAll(fifth); err != nil {
			t.Errorf("after its request: %v", err)
		}
		fifth.Close()
	})
}
