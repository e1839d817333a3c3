package sandbox

import (
	"errors"
	"strings"
	"testing"
)

func TestParseQuota(t *testing.T) {
	for text, want := range map[string]string{
		"off":                      "off",
		"sandboxes=1":              "sandboxes=1",
		" cpus=2.5 , memory_mb=64": "cpus=2.5,memory_mb=64",
		"creates_per_minute=9,disk_mb=8,sandboxes=7": "sandboxes=7,disk_mb=8,creates_per_minute=9",

		"keep_snapshots=3,keep_snapshot_hours=24,snapshot_mb=5,keep_snapshot_mb=4": "snapshot_mb=5,keep_snapshots=3,keep_snapshot_mb=4,keep_snapshot_hours=24",
		"sandboxes=1,session_minutes=90,bandwidth_mbps=20,egress_mb=7":             "sandboxes=1,session_minutes=90,egress_mb=7,bandwidth_mbps=20",
		"template_mb=6,volume_mb=5":                                                "volume_mb=5,template_mb=6",
		"keep_snapshot_hours=999999999":                                            "keep_snapshot_hours=878400",

		"": "", "sandboxes": "", "sandboxes=": "", "sandboxes=0": "", "sandboxes=-1": "", "sandboxes=1.5": "", "cpus=NaN": "", "cpus=Inf": "",
		"cpus=1e300": "", "snapshots=1": "", "session_minutes=0.5": "", "keep_snapshot_hours=1.5": "", "cpus=1,cpus=2": "", "cpus=1,": "", "off,cpus=1": "",
	} {
		q, err := ParseQuota(text)
		switch {
		case want == "" && !errors.Is(err, Invalid):
			t.Errorf("%q is the quota %s", text, q)
		case want != "" && (err != nil || q.String() != want):
			t.Errorf("%q is %s, %v, want %s", text, q, err, want)
		}
	}
}

func TestQuotaAdmit(t *testing.T) {
	shape := Shape{CPUs: 0.1, MemoryBytes: 100, DiskBytes: 200}
	for _, tt := range []struct {
		quota Quota
		used  QuotaUse
		room  bool
	}{
		{Quota{}, QuotaUse{1e6, 1e6, 1 << 60, 1 << 60, 1e6, 1e6, 1 << 60, 1e6, 1 << 60}, true},
		{Quota{Sandboxes: 2}, QuotaUse{Sandboxes: 1}, true},
		{Quota{Sandboxes: 2}, QuotaUse{Sandboxes: 2}, false},
		{Quota{CPUs: 0.3}, QuotaUse{CPUs: 0.1 + 0.1}, true}, // as numbers add up
		{Quota{CPUs: 0.3}, QuotaUse{CPUs: 0.25}, false},
		{Quota{MemoryBytes: 200}, QuotaUse{MemoryBytes: 100}, true},
		{Quota{MemoryBytes: 200}, QuotaUse{MemoryBytes: 101}, false},
		{Quota{DiskBytes: 200}, QuotaUse{}, true},
		{Quota{DiskBytes: 199}, QuotaUse{}, false},
		{Quota{CreatesPerMinute: 1}, QuotaUse{Sandboxes: 5}, true},
		{Quota{CreatesPerMinute: 1}, QuotaUse{Creates: 1}, false},
	} {
		err := tt.quota.Admit(tt.used, shape)
		if (err == nil) != tt.room || err != nil && !errors.Is(err, Exhausted) {
			t.Errorf("%s with %+v used: %v", tt.quota, tt.used, err)
		}
	}
}

func TestQuotaAdmitSnapshot(t *testing.T) {
	for _, tt := range []struct {
		most, used, size int64
		room             bool
	}{
		{0, 1 << 60, 1 << 40, true},
		{10 << 20, 10<<20 - 1, 0, true},
		{10 << 20, 10<<20 - 1, 1, true},
		{10 << 20, 10<<20 - 1, 2, false},
		{10 << 20, 10 << 20, 0, false},
		{10 << 20, 20 << 20, 0, false},
	} {
		err := Quota{SnapshotBytes: tt.most}.AdmitSnapshot(QuotaUse{SnapshotBytes: tt.used}, tt.size)
		if (err == nil) != tt.room || err != nil && (!errors.Is(err, Exhausted) || !errors.Is(err, ErrOverQuota)) {
			t.Errorf("%d bytes beside %d of %d: %v", tt.size, tt.used, tt.most, err)
		}
	}
}

func TestQuotaAdmitTemplate(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		most, used, size int64
		says             string // empty: there is room
	}{
		{0, 1 << 60, 1 << 40, ""},
		{10 * mib, 0, 0, ""},
		{10 * mib, 0, 10 * mib, ""},
		{10 * mib, 10*mib - 1, 0, ""},
		{10 * mib, 4 * mib, 6 * mib, ""},
		{10 * mib, 0, 10*mib + 20<<10, "the quota of 10 MiB of templates has 10 MiB left, and this one has 10.02 MiB: delete templates or versions first"},
		{10 * mib, 9*mib + mib/2, mib, "the quota of 10 MiB of templates has 0.5 MiB left, and this one has 1 MiB: delete templates or versions first"},
		{10 * mib, 10 * mib, 0, "the quota of 10 MiB of templates is used up, they have 10 MiB: delete templates or versions first"},
		{10 * mib, 20 * mib, mib, "the quota of 10 MiB of templates is used up, they have 20 MiB: delete templates or versions first"},
	} {
		err := Quota{TemplateBytes: tt.most}.AdmitTemplate(tt.used, tt.size)
		switch {
		case (err == nil) != (tt.says == ""):
			t.Errorf("%d bytes beside %d of %d: %v", tt.size, tt.used, tt.most, err)
		case err != nil && (!errors.Is(err, Exhausted) || !errors.Is(err, ErrOverQuota) || !strings.Contains(err.Error(), tt.says)):
			t.Errorf("%d bytes beside %d of %d: %v, want %s", tt.size, tt.used, tt.most, err, tt.says)
		}
	}
}
