package audit_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/audit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
)

var start = time.Date(2030, 1, 2, 3, 4, 5, 678000, time.UTC)

// filled is a Store with five entries.
func filled(t *testing.T) *sqlstore.Store {
	t.Helper()
	s := sqlitetest.Open(t)
	for n := range 5 {
		if _, err := s.AppendAudit(t.Context(), sandbox.AuditEntry{
			At: start.Add(time.Duration(n) * time.Second), Tenant: sandbox.TenantID(fmt.Sprint("t", n%2)), User: "ü<&>\u2028",
			Operation: "createSession", Remote: "::1", Status: 201,
		}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func export(t *testing.T, s *sqlstore.Store) []string {
	t.Helper()
	var out bytes.Buffer
	if err := audit.Export(t.Context(), s, &out, func(sandbox.AuditEntry) bool { return true }); err != nil {
		t.Fatal(err)
	}
	return strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func TestWhole(t *testing.T) {
	s := filled(t)
	var of, by audit.Checker
	if err := of.Store(t.Context(), s); err != nil || of.Entries != 5 || of.Last.Seq != 5 {
		t.Errorf("the store: %v, %+v", err, of)
	}
	if err := by.Lines(strings.NewReader(strings.Join(export(t, s), ""))); err != nil || by.Last != of.Last {
		t.Errorf("the export: %v, %+v, want %+v", err, by, of)
	}
	for expect, says := range map[sandbox.AuditMark]string{
		of.Last:                      "",
		{}:                           "",
		{Seq: 4, Hash: of.Last.Hash}: "entry 4 has another hash",
		{Seq: 6}:                     "ends with entry 5",
	} {
		c := audit.Checker{Expect: &expect}
		if err := c.Store(t.Context(), s); says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("expecting %v: %v, want %q", expect, err, says)
		}
	}
	if _, err := s.TrimAudit(t.Context(), start.Add(2*time.Second), 10); err != nil {
		t.Fatal(err)
	}
	for _, c := range []audit.Checker{{Expect: &of.Last}, {}} {
		if err := c.Store(t.Context(), s); err != nil || c.Entries != 3 || c.First.Seq != 2 {
			t.Errorf("without the old ones: %v, %+v", err, c)
		}
	}
	c := audit.Checker{Expect: &sandbox.AuditMark{Seq: 1}}
	if err := c.Store(t.Context(), s); err == nil || !strings.Contains(err.Error(), "age") {
		t.Errorf("expecting one that is gone: %v", err)
	}
	var later audit.Checker
	if err := later.Lines(strings.NewReader(strings.Join(export(t, s), ""))); err != nil || later.Entries != 3 {
		t.Errorf("an export of what is left: %v, %+v", err, later)
	}
	var none audit.Checker
	if err := none.Lines(strings.NewReader("")); err != nil || none.Entries != 0 {
		t.Errorf("an empty file: %v", err)
	}
}

// Whatever is done to an export, the first entry that is wrong is named.
func TestTampering(t *testing.T) {
	lines := export(t, filled(t))
	with := func(n int, from, to string) []string {
		out := append([]string{}, lines...)
		out[n] = strings.Replace(out[n], from, to, 1)
		return out
	}
	for name, tt := range map[string]struct {
		lines []string
		says  string
	}{
		"a changed status":   {with(2, `"status":201`, `"status":404`), "entry 3"},
		"a changed user":     {with(2, "ü", "u"), "entry 3"},
		"a changed tenant":   {with(1, `"t1"`, `"t0"`), "entry 2"},
		"a changed outcome":  {with(2, `"outcome":"ok"`, `"outcome":"failed"`), "entry 3"},
		"a changed time":     {with(2, "03:04", "03:05"), "entry 3"},
		"a finer time":       {with(2, ".000678Z", ".000678001Z"), "entry 3"},
		"a changed hash":     {with(2, `"hash":"`, `"hash":"00`), "entry 3"},
		"another hash":       {with(2, lines[2][len(lines[2])-20:], strings.Repeat("0", 17)+"\"}\n"), "entry 3"},
		"a field more":       {with(2, `{"seq"`, `{"x":1,"seq"`), "line 3"},
		"one more object":    {with(2, "}\n", "} {}\n"), "line 3"},
		"no JSON":            {with(2, "{", ""), "line 3"},
		"one taken out":      {append(append([]string{}, lines[:2]...), lines[3:]...), "entry 3 is missing"},
		"the first renamed":  {with(0, `"seq":1`, `"seq":7`), "entry 7"},
		"one put in twice":   {append(append([]string{}, lines[:3]...), lines[2:]...), "entry 3"},
		"two exchanged":      {[]string{lines[0], lines[2], lines[1]}, "entry 2 is missing"},
		"a false beginning":  {with(0, strings.Repeat("0", 64), strings.Repeat("1", 64)), "entry 1"},
		"the end, and a sum": {with(4, `"seq":5`, `"seq":6`), "entry 5 is missing"},
	} {
		var c audit.Checker
		if err := c.Lines(strings.NewReader(strings.Join(tt.lines, ""))); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", name, err, tt.says)
		}
	}
	cut := audit.Checker{Expect: &sandbox.AuditMark{Seq: 5}}
	if err := cut.Lines(strings.NewReader(strings.Join(lines[:3], ""))); err == nil || !strings.Contains(err.Error(), "ends with entry 3") {
		t.Errorf("a cut end: %v", err)
	}
}

func TestMarks(t *testing.T) {
	m := sandbox.AuditMark{Seq: 7, Hash: sandbox.AuditHash{1, 2}}
	if got, err := audit.ParseMark(audit.Mark(m)); err != nil || got != m {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "7", "x:00", "-1:" + strings.Repeat("0", 64), "7:00", "7:" + strings.Repeat("g", 64)} {
		if _, err := audit.ParseMark(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
