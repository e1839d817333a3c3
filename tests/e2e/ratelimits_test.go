package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit/redistest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// byLocal is the metric of requests that a gateway counted without Redis.
const byLocal = `cloud_sandbox_rate_limit_decisions_total{by="local"}`

// A caller's limit of 20 applies across two gateways, one of them a separate process.
// Without Redis each gateway applies the limit by itself, and no request waits or fails.
func TestRateLimitsOverTwoGateways(t *testing.T) {
	t.Parallel()
	rig.OneMachine(t)
	server := redistest.Start(t)
	const most = 20
	options := rig.Options{Pool: 1, Env: []string{
		"RATE_LIMITS=" + server.URL() + fmt.Sprintf(",read=0.001:%d", most), "JWT_SECRET=" + strings.Repeat("shared", 6),
	}}
	gateways := []*rig.Server{rig.Own(t, options), rig.OwnRoles(t, options).Server}

	exact := false
	for attempt := 0; attempt < 10 && !exact; attempt++ {
		admitted, _, bySelf := readAlternately(t, gateways, fmt.Sprintf("user%d", attempt), 2*most)
		switch {
		case admitted == most:
			exact = true
		case bySelf == 0:
			t.Fatalf("%d requests were admitted, want %d", admitted, most)
		}
		// Otherwise Redis answered too late on a busy machine.
	}
	if !exact {
		t.Error("in ten attempts Redis was too slow for some of the requests")
	}
	for _, key := range server.Keys(t) {
		if strings.Contains(key, "127.0.0.1") || strings.Contains(key, "user") {
			t.Errorf("the key %q shows a caller", key)
		}
	}

	server.Kill(t)
	for i, g := range gateways {
		rig.Within(t, rig.Patience, fmt.Sprintf("gateway %d knows that Redis is away", i), func() bool {
			return g.Metric("cloud_sandbox_redis_reachable") == 0 && strings.Contains(logOf(t, g), "Redis does not serve rate limits")
		})
	}
	admitted, longest, bySelf := readAlternately(t, gateways, "late", 3*most)
	if admitted != 2*most || bySelf != 3*most {
		t.Errorf("%d requests were admitted without Redis, and %g counted, want %d and %d", admitted, bySelf, 2*most, 3*most)
	}
	if longest > 15*time.Second {
		t.Errorf("a request without Redis took %v", longest)
	}

	server.Run(t)
	for i, g := range gateways {
		rig.Within(t, rig.Patience, fmt.Sprintf("gateway %d asks Redis again", i), func() bool {
			return g.Metric("cloud_sandbox_redis_reachable") == 1
		})
		log := logOf(t, g)
		if n := strings.Count(log, "Redis does not serve rate limits"); n != 1 && g.Metric(byLocal) == 0 {
			t.Errorf("gateway %d logged %d times that Redis went away", i, n)
		}
		if strings.Contains(log, redistest.Password) || strings.Contains(log, server.URL()) {
			t.Errorf("the log of gateway %d shows the password", i)
		}
	}
}

// readAlternately sends requests of one caller to the gateways in turn. It returns how many
// were admitted, the longest time, and how many were counted without Redis.
func readAlternately(t *testing.T, gateways []*rig.Server, user string, requests int) (admitted int, longest time.Duration, bySelf float64) {
	t.Helper()
	var clients []*rig.Client
	for _, g := range gateways {
		clients = append(clients, g.Client(t, user))
		bySelf -= g.Metric(byLocal)
	}
	for i := range requests {
		began := time.Now()
		status, raw, err := clients[i%len(clients)].Do("GET", "/api/v1/sessions", nil)
		longest = max(longest, time.Since(began))
		switch {
		case err == nil && status == http.StatusOK:
			admitted++
		case err != nil || status != http.StatusTooManyRequests:
			t.Fatalf("request %d: %d %s %v", i, status, raw, err)
		}
	}
	for _, g := range gateways {
		bySelf += g.Metric(byLocal)
	}
	return admitted, longest, bySelf
}

func logOf(t *testing.T, s *rig.Server) string {
	t.Helper()
	log, err := os.ReadFile(s.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}

// A server with an invalid Redis address does not start. The error does not show the
// password.
func TestRateLimitsRefuseAWrongAddress(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	s, err := rig.New(rig.Options{Env: []string{"RATE_LIMITS=redis://:h1d,d3n@localhost:6379"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // it never ran
	err = s.Launch()
	if err == nil || !strings.Contains(err.Error(), "RATE_LIMITS: the address of Redis has the form") || strings.Contains(err.Error(), "h1d") || strings.Contains(err.Error(), "d3n") {
		t.Errorf("a start: %v", err)
	}
}
