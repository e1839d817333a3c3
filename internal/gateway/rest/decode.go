package rest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// Decode reads the body of r, one JSON object, into v. An empty body is {}. Unknown
// fields, anything after the object and text that is not UTF-8 are Invalid. The caller
// must bound the size of r.Body.
func Decode(r *http.Request, v any) error { return decodeFrom(r.Body, v) }

func decodeFrom(body io.Reader, v any) error {
	raw, err := io.ReadAll(body)
	if err != nil {
		return bodyError(err)
	}
	return decodeObject(raw, v)
}

// decodeObject is Decode for a body that has been read.
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
		return jsonError(err, reflect.TypeOf(v))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return sandbox.Errorf(sandbox.Invalid, "the body has more text after its JSON object")
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

// jsonError is the client's error for a decoder's error about a body of type t.
func jsonError(err error, t reflect.Type) error {
	var coded *sandbox.Error
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &coded):
		return coded
	case errors.As(err, &kind) && kind.Field != "":
		return kindError(kind, t)
	case errors.As(err, &syntax):
		return sandbox.Errorf(sandbox.Invalid, "the body is not JSON, at byte %d", syntax.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return sandbox.Errorf(sandbox.Invalid, "the body is not JSON: it ends early")
	}
	// The error of an unknown field has no type of its own.
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return sandbox.Errorf(sandbox.Invalid, "the body has an unknown field %.128s", field).WithCause(sandbox.ErrUnknown)
	}
	var coding base64.CorruptInputError
	if errors.As(err, &coding) {
		return sandbox.Errorf(sandbox.Invalid, "the body has bytes that are not base64, at character %d of their text", int64(coding))
	}
	return sandbox.Errorf(sandbox.Invalid, "the body cannot be read: %.128s", strings.TrimPrefix(err.Error(), "json: "))
}

// kindError says which field of a body of type t has the wrong JSON type.
func kindError(wrong *json.UnmarshalTypeError, t reflect.Type) error {
	name, field := fieldOf(t, wrong.Field)
	if wrong.Type == reflect.TypeFor[v1.Seconds]() {
		return sandbox.NotSeconds(name, wrong.Value)
	}
	if field != nil && field != wrong.Type && (field.Kind() == reflect.Map || field.Kind() == reflect.Slice) {
		name = "what " + name + " holds"
	}
	return sandbox.Errorf(sandbox.Invalid, "%s must be %s, not %s", name, wantedKind(wrong.Type), givenKind(wrong.Value))
}

// fieldOf returns the client's name and the type of the field that the decoder calls
// path, in a body of type t. The name leaves out embedded structs. The type is nil for
// a field inside a type that decodes itself.
func fieldOf(t reflect.Type, path string) (string, reflect.Type) {
	var names []string
	for part := range strings.SplitSeq(path, ".") {
		for t != nil && slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, t.Kind()) {
			t = t.Elem()
		}
		if t == nil || t.Kind() != reflect.Struct {
			names, t = append(names, part), nil
			continue
		}
		if embedded, ok := t.FieldByName(part); ok && embedded.Anonymous {
			t = embedded.Type
			continue
		}
		names = append(names, part)
		var next reflect.Type
		for _, f := range reflect.VisibleFields(t) {
			if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == part {
				next = f.Type
			}
		}
		t = next
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return fmt.Sprintf("%.64s", strings.Join(names, ".")), t
}

// wantedKind names the JSON type that t is decoded from.
func wantedKind(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// givenKind names the JSON type that the decoder met, in the decoder's words.
func givenKind(value string) string {
	switch value {
	case "bool":
		return "true or false"
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "string", "number":
		return "a " + value
	}
	return fmt.Sprintf("the %.64s", value) // "number 1.5"
}

// secondsOf reads a number of seconds; false for anything else.
func secondsOf(text string) (time.Duration, bool) {
	var s v1.Seconds
	err := s.UnmarshalJSON([]byte(text))
	return time.Duration(s), err == nil
}

// query returns the query parameters of r. Parameters that are not in known, or that
// occur twice, are Invalid; "name[]" in known means name[anything].
func query(r *http.Request, known ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the query of the URL is malformed")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) { // of several wrong ones always the same is reported
		all := values[name]
		family, _, bracket := strings.Cut(name, "[")
		if !slices.Contains(known, name) && !(bracket && strings.HasSuffix(name, "]") && slices.Contains(known, family+"[]")) {
			return nil, sandbox.Errorf(sandbox.Invalid, "unknown query parameter %.64q", name).WithCause(sandbox.ErrUnknown)
		}
		if len(all) != 1 {
			return nil, sandbox.Errorf(sandbox.Invalid, "the query parameter %.64q is given twice", name)
		}
		if !utf8.ValidString(name + all[0]) {
			return nil, sandbox.Errorf(sandbox.Invalid, "the query parameter %.64q is not UTF-8", name)
		}
	}
	return values, nil
}
