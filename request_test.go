package sandbox_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestResourcesOfRequests(t *testing.T) {
	basic, err := sandbox.ShapeOfType("basic")
	if err != nil {
		t.Fatal(err)
	}
	larger := basic
	larger.CPUs, larger.Pids = 2, 100
	for name, tt := range map[string]struct {
		res       sandbox.Resources
		shape     sandbox.Shape
		bandwidth int64
		want      error
	}{
		"nothing":                {sandbox.Resources{}, sandbox.DefaultShape(), 0, nil},
		"a type":                 {sandbox.Resources{Type: "basic"}, basic, 0, nil},
		"a type and more":        {sandbox.Resources{Type: "basic", CPUs: new(2.0), Pids: new(int64(100))}, larger, 0, nil},
		"bandwidth alone":        {sandbox.Resources{BandwidthMbps: new(int64(8))}, sandbox.Shape{}, 1_000_000, nil},
		"no type of ours":        {sandbox.Resources{Type: "huge"}, sandbox.Shape{}, 0, sandbox.Invalid},
		"too little memory":      {sandbox.Resources{MemoryMB: new(int64(1))}, sandbox.Shape{}, 0, sandbox.Invalid},
		"memory that overflows":  {sandbox.Resources{MemoryMB: new(int64(math.MaxInt64))}, sandbox.Shape{}, 0, sandbox.Invalid},
		"memory below nothing":   {sandbox.Resources{MemoryMB: new(int64(math.MinInt64))}, sandbox.Shape{}, 0, sandbox.Invalid},
		"a disk that overflows":  {sandbox.Resources{DiskMB: new(int64(1 << 44))}, sandbox.Shape{}, 0, sandbox.Invalid},
		"CPUs that are no count": {sandbox.Resources{CPUs: new(math.NaN())}, sandbox.Shape{}, 0, sandbox.Invalid},
	} {
		var r sandbox.CreateRequest
		err := tt.res.Create(&r)
		if !errors.Is(err, tt.want) || err == nil && (r.Shape != tt.shape || r.Bandwidth != tt.bandwidth) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	var c sandbox.Change
	if err := (sandbox.Resources{Type: "basic"}).Change(&c); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("another type: %v", err)
	}
	if err := (sandbox.Resources{MemoryMB: new(int64(256)), BandwidthMbps: new(int64(0))}).Change(&c); err != nil || *c.MemoryBytes != 256<<20 || *c.Bandwidth != 0 || c.CPUs != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestDefaultsOfRequests(t *testing.T) {
	r := sandbox.CreateRequest{}
	sandbox.SessionDefaults().Fill(&r)
	if r.OnTimeout != sandbox.OnTimeoutPause || r.Timeout != sandbox.DefaultSessionTimeout {
		t.Errorf("a session: %+v", r)
	}
	r = sandbox.CreateRequest{Timeout: time.Second}
	sandbox.AcquireDefaults().Fill(&r)
	if r.OnTimeout != sandbox.OnTimeoutEnd || r.Timeout != time.Second {
		t.Errorf("an acquired one: %+v", r)
	}
}

func TestPortThatIsNoneIsQuoted(t *testing.T) {
	for n, want := range map[int64]string{
		70000: `invalid: "70000" is not a port: it must be a number from 1 to 65535`,
		-1:    `invalid: "-1" is not a port: it must be a number from 1 to 65535`,
	} {
		if _, err := sandbox.PortRules(false, []int64{n}, "", nil); err == nil || err.Error() != want {
			t.Errorf("%d: %v, want %s", n, err, want)
		}
	}
}

// Each of these rules has its edges.
func TestRulesOfRequests(t *testing.T) {
	_, noPort := sandbox.PortRules(false, []int64{0}, "", nil)
	_, farPort := sandbox.PortRules(false, nil, "", []int64{65536})
	_, ports := sandbox.PortRules(true, []int64{65535}, "", []int64{1})
	_, noName := sandbox.NamedSecretUses([]sandbox.SecretUse{{Host: "a.example", Header: "A", Format: "x"}})
	_, named := sandbox.NamedSecretUses([]sandbox.SecretUse{{Secret: "A", Host: "a.example", Header: "A"}})
	_, noLimit := sandbox.PageLimit(0, 5)
	_, overLimit := sandbox.PageLimit(6, 5)
	_, limit := sandbox.PageLimit(5, 5)
	_, noVolume := sandbox.VolumeBytes(0)
	_, hugeVolume := sandbox.VolumeBytes(math.MaxInt64)
	_, volume := sandbox.VolumeBytes(1)
	running := func(n int) sandbox.ListQuery { return sandbox.ListQuery{States: make([]sandbox.State, n)} }
	eight := running(8)
	for i := range eight.States {
		eight.States[i] = sandbox.Running
	}
	for name, tt := range map[string]struct {
		got error
		ok  bool
	}{
		"port 0": {noPort, false}, "port 65536": {farPort, false}, "ports": {ports, true},
		"a use without a secret": {noName, false}, "a use": {named, true},
		"limit 0": {noLimit, false}, "limit 6 of 5": {overLimit, false}, "limit 5 of 5": {limit, true},
		"an empty volume": {noVolume, false}, "a volume that overflows": {hugeVolume, false}, "a volume": {volume, true},
		"if_exists": {sandbox.IfExists("").Check(), true}, "if_exists fail": {sandbox.IfExistsFail.Check(), true}, "another if_exists": {sandbox.IfExists("x").Check(), false},
		"a long cursor": {sandbox.CheckCursor(strings.Repeat("a", 513)), false}, "a cursor": {sandbox.CheckCursor(strings.Repeat("a", 512)), true},
		"a state that is none": {sandbox.ListQuery{States: []sandbox.State{"x"}}.Check(), false}, "nine states": {running(9).Check(), false}, "eight states": {eight.Check(), true},
	} {
		if tt.ok && tt.got != nil || !tt.ok && !errors.Is(tt.got, sandbox.Invalid) {
			t.Errorf("%s: %v", name, tt.got)
		}
	}
	for n, want := range map[float64]time.Duration{
		1.5: 1500 * time.Millisecond, 1e-12: 1, math.MaxInt32: math.MaxInt32 * time.Second,
		0: -1, -1: -1, math.MaxInt32 + 1: -1, math.Inf(1): -1,
	} {
		if d, ok := sandbox.Seconds(n); ok != (want > 0) || ok && d != want {
			t.Errorf("%g seconds: %v, %v", n, d, ok)
		}
	}
	if _, ok := sandbox.Seconds(math.NaN()); ok {
		t.Error("seconds that are no number")
	}
}
