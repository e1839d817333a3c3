package sandbox

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// Each field is part of the hash: whatever is changed shows.
func TestAuditHashCoversEverything(t *testing.T) {
	e := AuditEntry{Seq: 1, At: time.Unix(1e9, 0).UTC(), Tenant: "a", User: "b"}
	e.Hash = e.HashAfter(AuditHash{})
	v := reflect.ValueOf(&e).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		changed := e
		switch f := reflect.ValueOf(&changed).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Int, reflect.Int64:
			f.SetInt(f.Int() + 1)
		case reflect.Struct:
			changed.At = e.At.Add(time.Microsecond)
		case reflect.Array:
			changed.Hash[0]++
		default:
			t.Fatalf("%s is of an unknown kind", name)
		}
		if _, err := (AuditMark{}).Follow(changed); !errors.Is(err, Conflict) {
			t.Errorf("with another %s: %v", name, err)
		}
	}
	if moved := (AuditEntry{Seq: 1, At: e.At, Tenant: "ab"}); moved.HashAfter(AuditHash{}) == e.Hash {
		t.Error("text that moved from one field to the next is not seen")
	}
	if e.HashAfter(AuditHash{1}) == e.Hash {
		t.Error("the hash before is not covered")
	}
}

func TestAuditMarkFollow(t *testing.T) {
	var all []AuditEntry
	var mark AuditMark
	for seq := range int64(4) {
		e := AuditEntry{Seq: seq + 1, At: time.Unix(1e9, 0)}
		e.Hash = e.HashAfter(mark.Hash)
		mark = AuditMark{e.Seq, e.Hash}
		all = append(all, e)
	}
	for _, tt := range []struct {
		name  string
		order []int
		says  string // of the first that is wrong; empty: none
	}{
		{"whole", []int{0, 1, 2, 3}, ""},
		{"one taken out", []int{0, 2, 3}, "entry 2 is missing"},
		{"the first taken out", []int{1}, "entry 1 is missing"},
		{"one twice", []int{0, 1, 1}, "entry 2 stands after entry 2"},
		{"two exchanged", []int{0, 2, 1}, "entry 2 is missing"},
	} {
		var m AuditMark
		var err error
		for _, i := range tt.order {
			if m, err = m.Follow(all[i]); err != nil {
				break
			}
		}
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error()+detail(err), tt.says)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
		}
	}
}

func detail(err error) string {
	var e *Error
	errors.As(err, &e)
	return e.Detail
}

func TestAuditText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "é": "é", "a\xffb": "ab",
		strings.Repeat("a", MaxAuditText+9):            strings.Repeat("a", MaxAuditText),
		strings.Repeat("a", MaxAuditText-1) + "é more": strings.Repeat("a", MaxAuditText-1),
	} {
		if got := AuditText(text); got != want || !utf8.ValidString(got) {
			t.Errorf("%.20q becomes %.20q", text, got)
		}
	}
}
