package sandbox_test

import (
	"math"
	"strings"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

func TestDaysBetween(t *testing.T) {
	at := time.Date(2026, 2, 28, 23, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		length time.Duration
		want   string
	}{
		{0, ""},
		{-time.Hour, ""},
		{time.Minute, "2026-02-28 1m0s"},
		{time.Hour, "2026-02-28 1h0m0s"},
		{time.Hour + 1, "2026-02-28 1h0m0s, 2026-03-01 1ns"},
		{26 * time.Hour, "2026-02-28 1h0m0s, 2026-03-01 24h0m0s, 2026-03-02 1h0m0s"},
	} {
		var got []string
		for day, d := range sandbox.DaysBetween(at, at.Add(tt.length)) {
			got = append(got, day.String()+" "+d.String())
		}
		if strings.Join(got, ", ") != tt.want {
			t.Errorf("%v: %q, want %q", tt.length, got, tt.want)
		}
	}
	for range sandbox.DaysBetween(at, at.AddDate(1, 0, 0)) {
		break // may stop early
	}
}

func TestParsePrices(t *testing.T) {
	p, err := sandbox.ParsePrices("USD, vcpu_hour=0.05,memory_gib_hour=0.01,disk_gib_hour=0,egress_gib=0.5")
	if err != nil || p != (sandbox.Prices{Currency: "USD", CPUHour: 0.05, MemoryGiBHour: 0.01, EgressGiB: 0.5}) {
		t.Errorf("%+v, %v", p, err)
	}
	hour := sandbox.Rate{CPUs: 2, MemoryBytes: 1 << 29, DiskBytes: 1 << 30}.Over(time.Hour)
	if c := p.Of(hour); math.Abs(c.CPU-0.1) > 1e-9 || math.Abs(c.Memory-0.005) > 1e-9 || c.Disk != 0 || math.Abs(c.Total()-0.105) > 1e-9 {
		t.Errorf("an hour costs %+v", c)
	}
	if c := p.Of(sandbox.UsageAmount{Traffic: sandbox.Traffic{Sent: 1 << 29, Received: 1 << 40}}); c != (sandbox.Cost{Egress: 0.25}) {
		t.Errorf("half a GiB sent costs %+v", c)
	}
	for _, text := range []string{"", "usd", "EURO", "USD,vcpu_hour", "USD,vcpu_hour=-1", "USD,vcpu_hour=NaN", "USD,vcpu_hour=1e9", "USD,vcpu_hour=1,vcpu_hour=2", "USD,cpu=1", "vcpu_hour=1"} {
		if _, err := sandbox.ParsePrices(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestRate(t *testing.T) {
	for state, want := range map[sandbox.State]bool{
		sandbox.Starting: false, sandbox.Running: true, sandbox.Pausing: true, sandbox.Paused: false,
		sandbox.Resuming: false, sandbox.Stopping: false, sandbox.Ended: false,
	} {
		s := sandbox.Sandbox{State: state, Limits: sandbox.Limits{CPUs: 1, MemoryBytes: 2}, Shape: sandbox.Shape{CPUs: 3, MemoryBytes: 4, DiskBytes: 5}}
		rate, charged := s.Rate()
		if charged != want || charged && rate != (sandbox.Rate{CPUs: 1, MemoryBytes: 2, DiskBytes: 5}) {
			t.Errorf("%s: %+v %v", state, rate, charged)
		}
	}
}
