package rest

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

// longText is a field of a view that may have megabytes. Its JSON could be six times as
// long, so it is streamed instead of held.
type longText struct {
	io.Reader
	as longKind
}

// longKind is the form of a longText's data.
type longKind int

const (
	asText   longKind = iota
	asJSON            // JSON, written unchanged
	asBase64          // bytes
)

// textIn is the content of a Spool, as text.
func textIn(s *spool.Spool) *longText { return &longText{Reader: s.Reader()} }

// bytesIn is the content of a Spool, as bytes; nil without a Spool.
func bytesIn(s *spool.Spool) *longText {
	if s == nil {
		return nil
	}
	return &longText{Reader: s.Reader(), as: asBase64}
}

// longList is a list field of a view. Its items are views with long fields, made one at
// a time.
type longList func(yield func(item any) bool)

// replyLong is Reply for a view with long fields.
func replyLong(w http.ResponseWriter, status int, v any) error {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	out := bufio.NewWriterSize(w, longBuffer)
	if err := writeLong(out, v); err != nil {
		return err
	}
	if err := out.WriteByte('\n'); err != nil {
		return err
	}
	return out.Flush()
}

// longBuffer is the size of one write, in bytes.
const longBuffer = 32 << 10

// writeLong writes a view with long fields, a struct, in the form of json.Marshal.
func writeLong(w *bufio.Writer, v any) error {
	o := object{w: w, next: '{'}
	if err := o.fields(reflect.ValueOf(v)); err != nil {
		return err
	}
	if o.next == '{' {
		_ = w.WriteByte('{') // an error stays until the next write
	}
	return w.WriteByte('}')
}

// object is a JSON object in progress.
type object struct {
	w    *bufio.Writer
	next byte // the byte before the next field
}

func (o *object) fields(v reflect.Value) error {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		if field.Anonymous {
			if value.Kind() == reflect.Pointer && value.IsNil() {
				continue
			}
			if err := o.fields(reflect.Indirect(value)); err != nil {
				return err
			}
			continue
		}
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if options == "omitempty" && empty(value) || options == "omitzero" && value.IsZero() {
			continue
		}
		if _, err := fmt.Fprintf(o.w, "%c%q:", o.next, name); err != nil {
			return err
		}
		o.next = ','
		if err := o.value(value.Interface()); err != nil {
			return err
		}
	}
	return nil
}

// empty reports whether omitempty leaves v out.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	}
	return v.IsZero()
}

func (o *object) value(v any) error {
	switch v := v.(type) {
	case *longText:
		return v.write(o.w)
	case map[string]*longText:
		return o.texts(v)
	case longList:
		return o.list(v)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = o.w.Write(text)
	return err
}

func (o *object) list(items longList) error {
	if err := o.w.WriteByte('['); err != nil {
		return err
	}
	var failed error
	first := true
	items(func(item any) bool {
		if !first {
			_ = o.w.WriteByte(',') // an error stays until the next write
		}
		first = false
		failed = writeLong(o.w, item)
		return failed == nil
	})
	if failed != nil {
		return failed
	}
	return o.w.WriteByte(']')
}

func (o *object) texts(all map[string]*longText) error {
	next := byte('{')
	for name, text := range all {
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(o.w, "%c%s:", next, key); err != nil {
			return err
		}
		if err := text.write(o.w); err != nil {
			return err
		}
		next = ','
	}
	return o.w.WriteByte('}')
}

// write writes text as a string, bytes as a base64 string, and JSON unchanged except
// for line breaks, which occur only between tokens.
func (t *longText) write(w *bufio.Writer) error {
	switch t.as {
	case asBase64:
		_ = w.WriteByte('"') // an error stays until the next write
		encoder := base64.NewEncoder(base64.StdEncoding, w)
		if _, err := io.CopyBuffer(encoder, t, make([]byte, longBuffer)); err != nil {
			return err
		}
		if err := encoder.Close(); err != nil {
			return err
		}
		return w.WriteByte('"')
	case asJSON:
		return t.pieces(func(p []byte) error {
			for i, c := range p {
				if c == '\n' || c == '\r' {
					p[i] = ' '
				}
			}
			_, err := w.Write(p)
			return err
		})
	}
	_ = w.WriteByte('"') // an error stays until the next write
	var left []byte      // the beginning of a cut character
	err := t.pieces(func(p []byte) error {
		left = append(left, p...)
		n := len(left) - execution.CutCharacter(left)
		if err := writeEscaped(w, left[:n]); err != nil {
			return err
		}
		left = append(left[:0], left[n:]...)
		return nil
	})
	if err == nil {
		err = writeEscaped(w, left)
	}
	if err != nil {
		return err
	}
	return w.WriteByte('"')
}

func (t *longText) pieces(each func([]byte) error) error {
	buffer := make([]byte, longBuffer)
	for {
		n, err := t.Read(buffer)
		if n > 0 {
			if err := each(buffer[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// writeEscaped writes text escaped for the inside of a JSON string.
func writeEscaped(w *bufio.Writer, text []byte) error {
	const hex = "0123456789abcdef"
	begin := 0
	for i := 0; i < len(text); {
		c, size := utf8.RuneError, 1
		if text[i] < utf8.RuneSelf {
			c = rune(text[i])
		} else {
			c, size = utf8.DecodeRune(text[i:])
		}
		var as string
		switch {
		case c == '"', c == '\\':
			as = "\\" + string(c)
		case c == '\n':
			as = `\n`
		case c == '\r':
			as = `\r`
		case c == '\t':
			as = `\t`
		case c < ' ', c == '<', c == '>', c == '&':
			as = `\u00` + string(hex[c>>4]) + string(hex[c&0xf])
		case c == '\u2028', c == '\u2029': // line ends to JavaScript
			as = `\u202` + string(hex[c&0xf])
		case c == utf8.RuneError && size == 1:
			as = `\ufffd`
		default:
			i += size
			continue
		}
		_, _ = w.Write(text[begin:i]) // an error stays until the next write
		if _, err := w.WriteString(as); err != nil {
			return err
		}
		i += size
		begin = i
	}
	_, err := w.Write(text[begin:])
	return err
}
