package ratelimit

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
)

func TestParseAddress(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Address
		says string
	}{
		{"redis://localhost:6380", Address{HostPort: "localhost:6380"}, ""},
		{"redis://localhost", Address{HostPort: "localhost:6379"}, ""},
		{"redis://localhost/", Address{HostPort: "localhost:6379"}, ""},
		{"rediss://r.example:1/3", Address{HostPort: "r.example:1", DB: 3, TLS: true}, ""},
		{"redis://[::1]:6379/15", Address{HostPort: "[::1]:6379", DB: 15}, ""},
		{"redis://[::1]", Address{HostPort: "[::1]:6379"}, ""},
		{"redis://:pw@h:1", Address{HostPort: "h:1", Password: "pw"}, ""},
		{"redis://me:pw@h:1", Address{HostPort: "h:1", User: "me", Password: "pw"}, ""},
		{"redis://m%3Ae:a%2Cb%40c%2Fd%3F%23%25%20:+@h:1", Address{HostPort: "h:1", User: "m:e", Password: "a,b@c/d?#% :+"}, ""},
		{"redis://", Address{}, "has the form"},
		{"redis:", Address{}, "has the form"},
		{"redis:localhost:6379", Address{}, "has the form"},
		{"redis:///0", Address{}, "has the form"},
		{"redis://:secret@", Address{}, "has the form"},
		{"redis://:secret@/0", Address{}, "has the form"},
		{"redis://:secret@h:1?db=2", Address{}, "has the form"},
		{"redis://:secret@h:1?", Address{}, "has the form"},
		{"redis://:secret@h:1/0#x", Address{}, "has the form"},
		{"redis://:sec%ret@h:1", Address{}, "percent-encoded"},
		{"redis://:sec#ret@h:1", Address{}, "percent-encoded"},
		{"redis://:1/secret@h:1", Address{}, "percent-encoded"},
		{"redis://u:1/secret@h:1", Address{}, "not the number of a database"},
		{"redis://:sec/ret@h:1", Address{}, "percent-encoded"},
		{"redis://:sec ret@h:1", Address{}, "percent-encoded"},
		{"unix:///run/redis.sock", Address{}, "has the form"},
		{"http://h:1", Address{}, "has the form"},
		{"redis://secret@h:1", Address{}, "no password before its @"},
		{"redis://me:@h:1", Address{}, "no password before its @"},
		{"redis://@h:1", Address{}, "no password before its @"},
		{"redis://:secret@h:0", Address{}, "the port of Redis"},
		{"redis://:secret@h:65536", Address{}, "the port of Redis"},
		{"redis://:secret@h:1/one", Address{}, "not the number of a database"},
		{"redis://:secret@h:1/-1", Address{}, "not the number of a database"},
		{"redis://:secret@h:1/0/1", Address{}, "not the number of a database"},
		{"redis://:secret@h:1/65536", Address{}, "not the number of a database"},
	} {
		got, err := ParseAddress(tt.text)
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q: %#v, %v, want %q", tt.text, got, err, tt.says)
			} else if strings.Contains(err.Error(), "sec") {
				t.Errorf("%q: the error shows the password: %v", tt.text, err)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("%q is %s of %q with %q, %v", tt.text, got, got.User, got.Password, err)
		}
	}
}

func TestAddressIsPrintedWithoutPassword(t *testing.T) {
	a := Address{HostPort: "h:1", User: "me", Password: "hidden", DB: 2, TLS: true}
	var logged strings.Builder
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "a", a, "b", &a)
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "a", a, "b", &a)
	all := fmt.Sprint(a, &a) + fmt.Sprintf("%v %+v %#v %s %q %v", a, a, a, a, a, struct{ A *Address }{&a}) + logged.String()
	if strings.Contains(all, "hidden") || !strings.Contains(all, "rediss://h:1/2") {
		t.Error(all)
	}
}

func TestParseWithRedis(t *testing.T) {
	changed := Defaults()
	changed[Create] = Rule{5, 50}
	delete(changed, Read)
	for _, tt := range []struct {
		text  string
		rules Rules
		want  string
		says  string
	}{
		{"redis://h:1", Defaults(), "redis://h:1/0", ""},
		{"redis://h:1,create=5:50,read=off", changed, "redis://h:1/0", ""},
		{"create=5:50, rediss://me:a%2Cb@h:1/2 ,read=off", changed, "rediss://h:1/2", ""},
		{"redis://h:1,redis://h:2", nil, "", "listed twice"},
		{"redis://h:1,off", nil, "", "is not a limit"},
		{"off,redis://h:1", nil, "", "is not a limit"},
		{"redis://h:1,", nil, "", "is not a limit"},
		{"redis://h:1,creates=1:2", nil, "", "is not a limit"},
		{"redis://h:1,create=x", nil, "", "create: its value is not"},
		// A comma that was not encoded: no piece of the password is shown.
		{"redis://:se,cret@h:1", nil, "", "percent-encoded"},
		{"redis://me:1,cret@h:1", nil, "", "percent-encoded"},
		{"redis://h:1,cret,se@h:1", nil, "", "percent-encoded"},
		{"redis://h:1,cret", nil, "", "percent-encoded"},
		{"redis://h:1,create=cret", nil, "", "PER_SECOND:BURST"},
		{"Redis://:cret@h:1", nil, "", "is not a limit"},
		{"redi://:se,cret@h:1", nil, "", "is not a limit"},
		{"http://:cret@h:1", nil, "", "is not a limit"},
	} {
		rules, address, err := Parse(tt.text)
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "cret") {
				t.Errorf("%q: %v, want %q", tt.text, err, tt.says)
			}
			continue
		}
		if err != nil || !maps.Equal(rules, tt.rules) || address == nil || address.String() != tt.want {
			t.Errorf("%q is %v at %v, %v", tt.text, rules, address, err)
		}
	}
}
