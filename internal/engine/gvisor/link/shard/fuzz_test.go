package shard

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// FuzzMessages sends arbitrary bytes, with or without a file, to a shard. A malformed
// message may end its own connection, but no other.
func FuzzMessages(f *testing.F) {
	for _, seed := range []string{
		"", "{", "null", "[]", `{"id":1}`,
		`{"id":1,"method":"hello","body":{"version":1}}`,
		`{"id":1,"method":"add","body":{"boot_id":"b00000000000000000000","policy":"public"}}`,
		`{"id":1,"method":"add","body":7}`,
		`{"id":2,"method":"remove","body":{"boot_id":"b00000000000000000000"}}`,
		`{"id":3,"method":"dial","body":{"boot_id":"b00000000000000000000","port":7,"timeout_ns":-1}}`,
		`{"id":3,"method":"dial","body":{"boot_id":"b00000000000000000000","port":70000}}`,
		`{"id":4,"method":"list"}`, `{"id":5,"method":"stats"}`, `{"id":6,"method":"fetch","body":{}}`,
		`{"id":18446744073709551615,"method":"set_policy","body":{"boot_id":"","policy":"public"}}`,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	c, path, _ := startAt(f)
	f.Fuzz(func(t *testing.T, message []byte, withFile bool) {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var rights []byte
		if withFile {
			null, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			rights = unix.UnixRights(int(null.Fd()))
		}
		if _, _, err := conn.WriteMsgUnix(message, rights, nil); err != nil {
			t.Skip(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, _ = conn.Read(make([]byte, 1<<16)) // an answer, an end, or nothing
		if _, err := c.List(testContext(t)); err != nil {
			t.Fatalf("another connection suffers: %v", err)
		}
	})
}

func TestWrongVersionIsUnsupported(t *testing.T) {
	_, path, _ := startAt(t)
	rpc, err := fdrpc.Dial(testContext(t), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rpc.Close()
	_, err = rpc.Call(testContext(t), link.MethodHello, link.Hello{Version: 99}, nil)
	if !errors.Is(err, sandbox.Unsupported) {
		t.Errorf("version 99 = %v, want Unsupported", err)
	}
}
