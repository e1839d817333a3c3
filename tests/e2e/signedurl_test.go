package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

func TestSignedURLs(t *testing.T) {
	t.Parallel()
	s := shared.Server(t)
	c := s.Client(t, "signed")
	id := c.Acquire(t)
	sign := func(method, path string, seconds float64) string {
		t.Helper()
		var signed struct{ URL string }
		c.Must(t, "POST", "/api/v1/files/sign", rig.Body{"sandbox_id": id, "path": path, "method": method, "expires_in_seconds": seconds}, &signed)
		return c.Below(t, signed.URL)
	}
	anyone := s.Anyone(t)
	answers := func(method, url string, body any, want int) string {
		t.Helper()
		code, raw, err := anyone.Do(method, url, body)
		if err != nil || code != want {
			t.Errorf("%s %.200s answers %d %.300s %v, want %d", method, url, code, raw, err, want)
		}
		return string(raw)
	}
	up, down := sign("PUT", "in/ü 1.txt", 600), sign("GET", "in/ü 1.txt", 600)
	answers("PUT", up, []byte("by link"), 200)
	if got := answers("GET", down, nil, 200); got != "by link" {
		t.Errorf("downloaded %q", got)
	}
	if got := c.Sh(t, id, "cat 'in/ü 1.txt'; stat -c %U 'in/ü 1.txt'"); got != "by linkuser\n" {
		t.Errorf("inside: %q", got)
	}
	answers("GET", up, nil, 403)
	answers("PUT", down, []byte("x"), 403)
	answers("GET", strings.Replace(down, "1.txt", "2.txt", 1), nil, 403)
	answers("GET", "/api/v1/files/list"+down[strings.Index(down, "?"):], nil, 401)
	soon := sign("GET", "in/ü 1.txt", 0.001)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if code, raw, _ := anyone.Do("GET", soon, nil); code == 403 && strings.Contains(string(raw), "expired") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not expire")
		}
	}
	c.Must(t, "POST", "/api/v1/files/sign/rotate", nil, nil)
	answers("GET", down, nil, 403)
	answers("GET", sign("GET", "in/ü 1.txt", 600), nil, 200)
}
