package rest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

type shortView struct {
	Name  string            `json:"name"`
	Text  string            `json:"text"`
	None  *string           `json:"none,omitempty"`
	Code  int               `json:"code"`
	Raw   json.RawMessage   `json:"raw,omitempty"`
	Items []shortItem       `json:"items"`
	More  map[string]string `json:"more,omitempty"`
	Bytes []byte            `json:"bytes,omitempty"`
	At    time.Time         `json:"at,omitzero"`
	*part
}

type shortItem struct {
	Text string `json:"text"`
}

type part struct {
	Count int64 `json:"count"`
}

type longView struct {
	Name  string               `json:"name"`
	Text  *longText            `json:"text"`
	None  *longText            `json:"none,omitempty"`
	Code  int                  `json:"code"`
	Raw   *longText            `json:"raw,omitempty"`
	Items longList             `json:"items"`
	More  map[string]*longText `json:"more,omitempty"`
	Bytes *longText            `json:"bytes,omitempty"`
	At    time.Time            `json:"at,omitzero"`
	*part
}

type longItem struct {
	Text *longText `json:"text"`
}

// Views with long fields are written as json.Marshal writes the same with strings,
// however their texts come and are cut.
func TestWriteLong(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{"a", "\x00", "\x1f", "\x7f", `"`, `\`, "\n", "\r", "\t", "<", ">", "&", "é", "漢", "😀", "\u2028", "\u2029", "\uFFFD", "\xff", "\xe6\xbc", "\xf0\x9f"}
	textOf := func() string {
		var s strings.Builder
		for range random.IntN(40) {
			s.WriteString(alphabet[random.IntN(len(alphabet))])
		}
		return s.String()
	}
	long := func(s string) *longText {
		r := io.Reader(strings.NewReader(s))
		switch random.IntN(3) {
		case 0:
			r = iotest.OneByteReader(r)
		case 1:
			r = iotest.HalfReader(r)
		}
		return &longText{Reader: r}
	}
	for range 2000 {
		one, two, name, mime := textOf(), textOf(), textOf(), "text/"+textOf()
		short := shortView{Name: name, Text: one, Code: 7, Items: []shortItem{}}
		view := longView{Name: name, Text: long(one), Code: 7, Items: func(func(any) bool) {}}
		if random.IntN(2) == 0 {
			short.Items = []shortItem{{one}, {two}}
			view.Items = func(yield func(any) bool) { _ = yield(longItem{long(one)}) && yield(longItem{long(two)}) }
			short.More, view.More = map[string]string{mime: two}, map[string]*longText{mime: long(two)}
			if one != "" {
				short.Bytes, view.Bytes = []byte(one), &longText{Reader: strings.NewReader(one), as: asBase64}
			}
			short.At = time.Unix(1, 2).UTC()
			view.At = short.At
			short.part, view.part = &part{3}, &part{3}
			short.Raw, view.Raw = json.RawMessage(`{"a":[1,"x"]}`), &longText{Reader: strings.NewReader(`{"a":[1,"x"]}`), as: asJSON}
		}
		want, err := json.Marshal(short)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		out := bufio.NewWriterSize(&got, 16)
		if err := writeLong(out, view); err != nil {
			t.Fatal(err)
		}
		out.Flush()
		if got.String() != string(want) {
			t.Fatalf("%q\n%s, want\n%s", one, got.String(), want)
		}
	}
}

// JSON within never breaks a line, which would end an event.
func TestLongJSONHasNoLines(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	out := bufio.NewWriter(&got)
	view := longItem{&longText{Reader: strings.NewReader("{\r\n \"a\": \"b\\n\"\n}"), as: asJSON}}
	if err := writeLong(out, view); err != nil {
		t.Fatal(err)
	}
	out.Flush()
	if s := got.String(); strings.ContainsAny(s, "\r\n") || s != `{"text":{   "a": "b\n" }}` {
		t.Errorf("%q", s)
	}
}
