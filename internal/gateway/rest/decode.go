package rest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Decode reads the body of r, one JSON object, into v. An empty body is {}.
// Unknown fields, anything after the object and text that is not UTF-8 are
// Invalid. The size of the body is bounded by whoever made r.Body.
func Decode(r *http.Request, v any) error { return decodeFrom(r.Body, v) }

func decodeFrom(body io.Reader, v any) error {
	raw, err := io.ReadAll(body)
	if err != nil {
		return bodyError(err)
	}
	return decodeObject(raw, v)
}

// decodeObject is Decode for what has been read.
func decodeObject(raw []byte, v any) error {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	switch {
	case len(raw) == 0:
		return nil
	case raw[0] != '{':
		return sandbox.Errorf(sandbox.Invalid, "the body must be a JSON object")
	case !utf8.Valid(raw):
		return sandbox.Errorf(sandbox.Invalid, "the body is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return jsonError(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return sandbox.Errorf(sandbox.Invalid, "the body goes on after its JSON object")
	}
	return nil
}

// bodyError keeps a Code that a body reader gave; another failure to read is
// the client's.
func bodyError(err error) error {
	if sandbox.CodeOf(err) != sandbox.Internal {
		return err
	}
	return sandbox.Errorf(sandbox.Invalid, "the body broke off").WithCause(err)
}

func jsonError(err error) error {
	var coded *sandbox.Error
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &coded):
		return coded
	case errors.As(err, &kind) && kind.Field != "":
		return sandbox.Errorf(sandbox.Invalid, "%.64s must not be a JSON %.64s", kind.Field, kind.Value)
	case errors.As(err, &syntax):
		return sandbox.Errorf(sandbox.Invalid, "the body is not JSON, at byte %d", syntax.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return sandbox.Errorf(sandbox.Invalid, "the body is not JSON: it ends early")
	}
	// What is left names an unknown field, without a type of its own.
	return sandbox.Errorf(sandbox.Invalid, "the body has an %.128s", strings.TrimPrefix(err.Error(), "json: "))
}

// seconds is a length of time in JSON: a number of seconds, more than 0.
type seconds time.Duration

func (s *seconds) UnmarshalJSON(raw []byte) error {
	var n float64
	if err := json.Unmarshal(raw, &n); err != nil || !(n > 0) || n > math.MaxInt32 {
		return sandbox.Errorf(sandbox.Invalid, "a number of seconds must be more than 0, not %.32s", raw)
	}
	*s = seconds(max(n*float64(time.Second), 1))
	return nil
}

// duration is zero for a field that was absent.
func (s *seconds) duration() time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s)
}

// secondsOrNone is a length of time in JSON of which 0 and null are none.
type secondsOrNone time.Duration

func (s *secondsOrNone) UnmarshalJSON(raw []byte) error {
	if text := string(raw); text == "null" || text == "0" {
		*s = 0
		return nil
	}
	return (*seconds)(s).UnmarshalJSON(raw)
}

// optional is a field that may be absent; null is its zero value.
type optional[T any] struct {
	given bool
	value T
}

func (o *optional[T]) UnmarshalJSON(raw []byte) error {
	o.given = true
	return json.Unmarshal(raw, &o.value)
}

// pointer is nil for a field that was absent.
func (o *optional[T]) pointer() *T {
	if !o.given {
		return nil
	}
	return &o.value
}

// target is how a request names a Sandbox: a Session and its Sandbox have one
// ID, so both words mean the same.
type target struct {
	SandboxID string `json:"sandbox_id"`
	SessionID string `json:"session_id"`
}

// optional returns the ID or name, or the empty string when there is none.
func (t target) optional() (string, error) {
	if t.SandboxID != "" && t.SessionID != "" && t.SandboxID != t.SessionID {
		return "", sandbox.Errorf(sandbox.Invalid, "sandbox_id and session_id name different sandboxes")
	}
	return cmp.Or(t.SandboxID, t.SessionID), nil
}

// required returns the ID or name; Invalid when there is none.
func (t target) required() (string, error) {
	id, err := t.optional()
	if err == nil && id == "" {
		err = sandbox.Errorf(sandbox.Invalid, "sandbox_id is missing")
	}
	return id, err
}

// query returns the query parameters of r. Parameters that are not among known,
// or stand there twice, are Invalid; "name[]" in known means name[anything].
func query(r *http.Request, known ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the query of the URL is malformed")
	}
	for name, all := range values {
		family, _, bracket := strings.Cut(name, "[")
		if !slices.Contains(known, name) && !(bracket && strings.HasSuffix(name, "]") && slices.Contains(known, family+"[]")) {
			return nil, sandbox.Errorf(sandbox.Invalid, "unknown query parameter %.64q", name)
		}
		if len(all) != 1 {
			return nil, sandbox.Errorf(sandbox.Invalid, "the query parameter %.64q stands there twice", name)
		}
		if !utf8.ValidString(name + all[0]) {
			return nil, sandbox.Errorf(sandbox.Invalid, "the query parameter %.64q is not UTF-8", name)
		}
	}
	return values, nil
}
