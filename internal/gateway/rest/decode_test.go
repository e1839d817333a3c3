package rest

import (
	"errors"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// An error about a body names the field as the client wrote it.
func TestDecodeNamesTheField(t *testing.T) {
	t.Parallel()
	type inner struct {
		Cols int `json:"cols"`
	}
	type embedded struct {
		Mode string `json:"mode"`
	}
	type body struct {
		v1.Target
		embedded
		User     *string                 `json:"user"`
		Keep     bool                    `json:"keep"`
		Share    float64                 `json:"share"`
		PTY      *inner                  `json:"pty"`
		Argv     []string                `json:"argv"`
		Metadata map[string]string       `json:"metadata"`
		Sizes    []inner                 `json:"sizes"`
		Timeout  *v1.Seconds             `json:"timeout_seconds"`
		Idle     v1.SecondsOrNone        `json:"idle_timeout_seconds"`
		Name     v1.Optional[string]     `json:"name"`
		Every    v1.Optional[v1.Seconds] `json:"every_seconds"`
		Ports    *v1.PortRules           `json:"ports"`
		Data     []byte                  `json:"data"`
	}
	for _, tt := range []struct{ raw, want string }{
		{`{"sandbox_id": 5}`, "sandbox_id must be a string, not a number"},
		{`{"mode": 600}`, "mode must be a string, not a number"},
		{`{"user": {}}`, "user must be a string, not an object"},
		{`{"keep": "yes"}`, "keep must be true or false, not a string"},
		{`{"share": []}`, "share must be a number, not a list"},
		{`{"pty": true}`, "pty must be an object, not true or false"},
		{`{"pty": {"cols": "80"}}`, "pty.cols must be a whole number, not a string"},
		{`{"pty": {"cols": 1.5}}`, "pty.cols must be a whole number, not the number 1.5"},
		{`{"argv": "ls"}`, "argv must be a list, not a string"},
		{`{"argv": [1]}`, "what argv holds must be a string, not a number"},
		{`{"metadata": {"a": 1}}`, "what metadata holds must be a string, not a number"},
		{`{"sizes": [{"cols": "80"}]}`, "sizes.cols must be a whole number, not a string"},
		{`{"name": 1}`, "name must be a string, not a number"},
		{`{"ports": []}`, "ports must be an object, not a list"},
		{`{"ports": {"private": 1}}`, "ports.private must be true or false, not a number"},
		{`{"ports": {"exceptions": ["x"]}}`, "ports.exceptions must be a list of whole numbers"},
		{`{"ports": {"tls": [1.5]}}`, "ports.tls must be a list of whole numbers"},
		{`{"ports": {"open": true}}`, `the body has an unknown field "open"`},
		{`{"timeout_seconds": "5"}`, `timeout_seconds must be a number of seconds, more than 0 and at most 2147483647, not "5"`},
		{`{"timeout_seconds": 1e20}`, "timeout_seconds must be a number of seconds, more than 0 and at most 2147483647, not 1e20"},
		{`{"idle_timeout_seconds": -1}`, "idle_timeout_seconds must be a number of seconds, more than 0 and at most 2147483647, not -1"},
		{`{"every_seconds": 0}`, "every_seconds must be a number of seconds, more than 0 and at most 2147483647, not 0"},
		{`{"other": 1}`, `the body has an unknown field "other"`},
		{`{"data": "***"}`, "the body has bytes that are not base64, at character 0 of their text"},
		{`{"user": "a"`, "the body is not JSON: it ends early"},
		{`{"user": "a"} {}`, "the body has more text after its JSON object"},
		{`[]`, "the body must be a JSON object"},
	} {
		err := decodeObject([]byte(tt.raw), &body{})
		var coded *sandbox.Error
		if !errors.As(err, &coded) || coded.Code != sandbox.Invalid || coded.Detail != tt.want {
			t.Errorf("%s: %v, want %q", tt.raw, err, tt.want)
		}
		if unknown := strings.Contains(tt.want, "unknown field"); errors.Is(err, sandbox.ErrUnknown) != unknown {
			t.Errorf("%s: of another version: %v, want %v", tt.raw, !unknown, unknown)
		}
	}
}
