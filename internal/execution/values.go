package execution

import (
	"encoding/json"
	"io"
	"iter"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

// Values are the values of an execution, in order.
type Values struct {
	spool spool.Spool
	kept  []keptValue
}

// keptValue locates a Value in the spool.
type keptValue struct {
	main bool
	data []keptData
}

type keptData struct {
	mime    string
	from, n int64
	json    bool
}

// Data is one representation of a value.
type Data struct {
	MIME string
	// JSON reports whether the data is JSON. Otherwise it is text.
	JSON bool
	Len  int64 // bytes
	io.Reader
}

// Len is the number of values.
func (v *Values) Len() int { return len(v.kept) }

// add keeps a Value, if the spool has room for it. It reports whether it did.
func (v *Values) add(value Value) bool {
	k := keptValue{main: value.Main}
	for mime, data := range value.Data {
		k.data = append(k.data, keptData{mime, int64(v.spool.Len()), int64(len(data)), json.Valid([]byte(data))})
		if _, err := v.spool.WriteString(data); err != nil {
			return false
		}
	}
	v.kept = append(v.kept, k)
	return true
}

// All reads the values in order. The Data of a value must be read before the next value.
func (v *Values) All() iter.Seq2[bool, iter.Seq[Data]] {
	return func(yield func(main bool, data iter.Seq[Data]) bool) {
		for _, k := range v.kept {
			data := func(yield func(Data) bool) {
				for _, d := range k.data {
					if !yield(Data{d.mime, d.json, d.n, v.spool.Section(d.from, d.n)}) {
						return
					}
				}
			}
			if !yield(k.main, data) {
				return
			}
		}
	}
}

// All reads the representations of v.
func (v *Value) All() iter.Seq[Data] {
	return func(yield func(Data) bool) {
		for mime, data := range v.Data {
			if !yield(Data{mime, json.Valid([]byte(data)), int64(len(data)), strings.NewReader(data)}) {
				return
			}
		}
	}
}
