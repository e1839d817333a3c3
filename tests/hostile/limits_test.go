package hostile

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A flood of calls without a key does not affect keys behind the same proxy. A client
// that guesses keys is stopped, even with forged addresses.
func TestFloodBehindAProxy(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	s := rig.Own(t, rig.Options{Strict: true, Env: []string{
		"JWT_SECRET=0123456789abcdef0123456789abcdef", "RATE_LIMITS=token=0.001:30", "CLOUD_SANDBOX_TRUSTED_PROXIES=127.0.0.0/8,::1",
	}})
	made, err := rig.Command(s.Bin, "key", "create", "--admin", "--data", s.Data).Output()
	if err != nil {
		t.Fatal(err)
	}
	admin := strings.TrimSpace(string(made))
	guess := "e2b_" + strings.Repeat("0", 40)
	anyone := s.Anyone(t)
	mint := func(from, key string) int {
		req, err := http.NewRequest("POST", s.URL+"/api/v1/auth/token", strings.NewReader(`{"user_id":"a","role":"user"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Forwarded-For", from)
		if key != "" {
			req.Header.Set("X-API-Key", key)
		}
		resp, err := anyone.HTTP.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	const flooder, neighbour = "203.0.113.1", "203.0.113.2"
	statuses := map[int]int{}
	for range 60 {
		statuses[mint(flooder, "")]++
	}
	if statuses[http.StatusForbidden] != 30 || statuses[http.StatusTooManyRequests] != 30 {
		t.Errorf("the flood: %v", statuses)
	}
	for range 20 {
		if got := mint(flooder, admin); got != http.StatusOK {
			t.Fatalf("a key at the flooder's address: %d", got)
		}
	}
	for _, from := range []string{flooder, "198.51.100.7, " + flooder, "127.0.0.1, " + flooder} {
		if got := mint(from, guess); got != http.StatusTooManyRequests {
			t.Errorf("a guess from %s: %d", from, got)
		}
	}
	if got := mint(neighbour, guess); got != http.StatusUnauthorized {
		t.Errorf("a neighbour's mistake: %d", got)
	}
}
