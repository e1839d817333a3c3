package rpc

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// Messages and the types of api/v1 have fields of the same names. The exceptions are:
//
//   - A message within a message groups fields of one object in JSON, where that object
//     has no object of its name: "sandbox" in a GetResponse, "repository" in a
//     StatusRequest.
//   - A message that has only a list stands for a list that may be absent.
//   - A map in a message has no null: "remove_metadata" lists the keys of "metadata" that
//     are null in JSON.
//   - "files_only" is the opposite of "memory".
//   - A network policy is a text, and its rules are JSON in it.
//   - A Failure in a text is its sentence.
//   - The names in renamed.
var renamed = map[protoreflect.FullName]string{
	"cloudsandbox.sandbox.v1.CreateResponse.created": "IsNew", // which REST says by the status
	"cloudsandbox.sandbox.v1.ListResponse.sandboxes": "sessions",
	"cloudsandbox.sandbox.v1.ForkResponse.copies":    "forks",
	"cloudsandbox.key.v1.CreateResponse.secret":      "key",
	"cloudsandbox.key.v1.RotateResponse.secret":      "key",
	"cloudsandbox.template.v1.File.content":          "content_base64",
}

// jsonField is a field of the JSON of a struct.
type jsonField struct {
	index    []int
	of       reflect.Type // not a pointer
	optional bool         // absent when it is zero
}

// jsonFields returns the fields of the JSON of a struct by their names, also of embedded
// structs. A field that is not in the JSON has its name in Go.
func jsonFields(t reflect.Type) map[string]jsonField {
	all := map[string]jsonField{}
	addFields(all, t, nil)
	return all
}

// addFields adds the fields of the struct t, which is at index. Reflection alone would
// hide fields with the name of an embedded struct.
func addFields(all map[string]jsonField, t reflect.Type, index []int) {
	for i := range t.NumField() {
		f := t.Field(i)
		at := append(slices.Clone(index), i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			addFields(all, pointed(f.Type), at)
			continue
		case name == "-":
			name = f.Name
		}
		all[name] = jsonField{at, pointed(f.Type), options != ""}
	}
}

// pointed is t, or the type that the pointer t points to.
func pointed(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// step copies one field of a message.
type step struct {
	field protoreflect.FieldDescriptor
	jsonField
	kind  stepKind
	inner *plan // of a message, or of each of a list; nil: of another kind
}

type stepKind int

const (
	copied   stepKind = iota
	grouped           // the fields of the message belong to the same struct
	removals          // keys of the map that are null
	inverted
	decoded  // by the type's own UnmarshalJSON
	rawJSON  // that no type has decoded
	moment   // a time
	sentence // of a Failure
)

// plan is how a message is copied to or from a struct.
type plan struct {
	steps  []step
	lacked []protoreflect.FieldDescriptor // fields that the struct does not have
}

type planKey struct {
	message protoreflect.FullName
	of      reflect.Type
}

var plans sync.Map // of planKey to *plan

// planOf returns the plan for a message and a struct.
func planOf(d protoreflect.MessageDescriptor, t reflect.Type) *plan {
	key := planKey{d.FullName(), t}
	if known, ok := plans.Load(key); ok {
		return known.(*plan)
	}
	p, fields := &plan{}, jsonFields(t)
	for i := range d.Fields().Len() {
		p.add(d.Fields().Get(i), fields, t)
	}
	plans.Store(key, p)
	return p
}

func (p *plan) add(f protoreflect.FieldDescriptor, fields map[string]jsonField, t reflect.Type) {
	name := string(f.Name())
	if other, ok := renamed[f.FullName()]; ok {
		name = other
	}
	if to, ok := fields[name]; ok && (!isGroup(f) || to.of.Kind() != reflect.String || isUnmarshaler(to.of)) {
		p.steps = append(p.steps, copyOf(f, to))
		return
	}
	if to, ok := fields[strings.TrimPrefix(name, "remove_")]; ok && f.IsList() && to.of.Kind() == reflect.Map {
		p.steps = append(p.steps, step{field: f, jsonField: to, kind: removals})
		return
	}
	if to, ok := fields["memory"]; ok && name == "files_only" {
		p.steps = append(p.steps, step{field: f, jsonField: to, kind: inverted})
		return
	}
	if !isGroup(f) {
		p.lacked = append(p.lacked, f)
		return
	}
	inner := planOf(f.Message(), t)
	p.steps = append(p.steps, step{field: f, kind: grouped, inner: inner})
	p.lacked = append(p.lacked, inner.lacked...)
}

// copyOf is the step for a field and its counterpart.
func copyOf(f protoreflect.FieldDescriptor, to jsonField) step {
	s := step{field: f, jsonField: to}
	switch {
	case to.of == reflect.TypeFor[time.Time]():
		s.kind = moment
	case to.of == reflect.TypeFor[json.RawMessage]():
		s.kind = rawJSON
	case to.of == reflect.TypeFor[v1.Failure]():
		s.kind = sentence
	case isUnmarshaler(to.of):
		s.kind = decoded
	case f.Kind() == protoreflect.MessageKind && f.IsList():
		s.inner = planOf(f.Message(), to.of.Elem())
	case f.Kind() == protoreflect.MessageKind && !f.IsMap():
		s.inner = planOf(f.Message(), to.of)
	}
	return s
}

// isGroup reports whether a field is a single message of ours.
func isGroup(f protoreflect.FieldDescriptor) bool {
	return f.Kind() == protoreflect.MessageKind && !f.IsList() && !f.IsMap() && f.Message().FullName() != timestampName
}

var (
	timestampName = (&timestamppb.Timestamp{}).ProtoReflect().Descriptor().FullName()
	unmarshaler   = reflect.TypeFor[json.Unmarshaler]()
)

func isUnmarshaler(t reflect.Type) bool { return reflect.PointerTo(t).Implements(unmarshaler) }

// take sets the struct that to points to from a request.
func take(to any, from proto.Message) error {
	message, value := from.ProtoReflect(), reflect.ValueOf(to).Elem()
	return planOf(message.Descriptor(), value.Type()).fill(value, message)
}

// fill sets the struct to from a message.
func (p *plan) fill(to reflect.Value, from protoreflect.Message) error {
	for i := range p.steps {
		s := &p.steps[i]
		if !from.Has(s.field) {
			continue
		}
		var err error
		switch value := from.Get(s.field); s.kind {
		case grouped:
			err = s.inner.fill(to, value.Message())
		case removals:
			err = remove(string(s.field.Name()), to.FieldByIndex(s.index), value.List())
		case inverted:
			to.FieldByIndex(s.index).Set(reflect.ValueOf(new(!value.Bool())))
		default:
			err = s.fill(to.FieldByIndex(s.index), value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// remove sets keys of the map to to nil. A key that has a value already is Invalid.
func remove(name string, to reflect.Value, keys protoreflect.List) error {
	if to.IsNil() {
		to.Set(reflect.MakeMap(to.Type()))
	}
	for i := range keys.Len() {
		key := reflect.ValueOf(keys.Get(i).String())
		if old := to.MapIndex(key); old.IsValid() && !old.IsNil() {
			return sandbox.Errorf(sandbox.Invalid, "%s both sets and removes %.64q", strings.TrimPrefix(name, "remove_"), key)
		}
		to.SetMapIndex(key, reflect.Zero(to.Type().Elem()))
	}
	return nil
}

// fill sets one field.
func (s *step) fill(to reflect.Value, from protoreflect.Value) error {
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	switch {
	case s.kind == decoded:
		return decode(to.Addr().Interface().(json.Unmarshaler), s.field, from)
	case s.field.IsList():
		list := from.List()
		to.Set(reflect.MakeSlice(to.Type(), list.Len(), list.Len()))
		for i := range list.Len() {
			if err := s.fillValue(to.Index(i), list.Get(i)); err != nil {
				return err
			}
		}
		return nil
	case s.field.IsMap():
		to.Set(reflect.MakeMap(to.Type()))
		from.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			one := reflect.ValueOf(value.String())
			if to.Type().Elem().Kind() == reflect.Pointer {
				one = reflect.ValueOf(new(value.String()))
			}
			to.SetMapIndex(reflect.ValueOf(key.String()), one)
			return true
		})
		return nil
	}
	return s.fillValue(to, from)
}

func (s *step) fillValue(to reflect.Value, from protoreflect.Value) error {
	switch s.field.Kind() {
	case protoreflect.MessageKind:
		return s.inner.fill(to, from.Message())
	case protoreflect.StringKind:
		to.SetString(from.String())
	case protoreflect.BoolKind:
		to.SetBool(from.Bool())
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		to.SetInt(from.Int())
	case protoreflect.DoubleKind:
		to.SetFloat(from.Float())
	case protoreflect.BytesKind:
		to.SetBytes(from.Bytes())
	default:
		panic("rpc: " + string(s.field.FullName()) + " is of a kind that no request has")
	}
	return nil
}

// decode has a type read the JSON of a field. Its errors become the client's.
func decode(to json.Unmarshaler, f protoreflect.FieldDescriptor, from protoreflect.Value) error {
	var raw []byte
	var err error
	if _, ok := to.(*v1.Network); ok {
		raw = v1.ShownNetwork(sandbox.NetworkPolicy(from.String()))
	} else if raw, err = jsonOf(f, from); err != nil {
		return err
	}
	return fieldError(f, to.UnmarshalJSON(raw))
}

// jsonOf is the JSON of a field.
func jsonOf(f protoreflect.FieldDescriptor, from protoreflect.Value) ([]byte, error) {
	if f.Kind() == protoreflect.MessageKind && !f.IsList() {
		inner := f.Message().Fields()
		if inner.Len() != 1 || !inner.Get(0).IsList() {
			return protojson.MarshalOptions{UseProtoNames: true}.Marshal(from.Message().Interface())
		}
		f = inner.Get(0)
		from = from.Message().Get(f)
	}
	if !f.IsList() {
		raw, err := json.Marshal(from.Interface())
		if err != nil { // a number that JSON does not have
			raw = []byte(`"` + from.String() + `"`)
		}
		return raw, nil
	}
	all := []json.RawMessage{}
	for i := range from.List().Len() {
		one := from.List().Get(i)
		var raw []byte
		var err error
		if f.Kind() == protoreflect.MessageKind {
			raw, err = protojson.MarshalOptions{UseProtoNames: true}.Marshal(one.Message().Interface())
		} else {
			raw, err = json.Marshal(one.Interface())
		}
		if err != nil {
			return nil, err
		}
		all = append(all, raw)
	}
	return json.Marshal(all)
}

// fieldError is the client's error for a type's own error about a field.
func fieldError(f protoreflect.FieldDescriptor, err error) error {
	var coded *sandbox.Error
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &coded):
		return coded
	case errors.As(err, &kind) && kind.Type == reflect.TypeFor[v1.Seconds]():
		return sandbox.NotSeconds(string(f.Name()), strings.Trim(kind.Value, `"`))
	}
	return sandbox.Errorf(sandbox.Invalid, "%s is malformed", f.Name()).WithCause(err)
}

// messageOf shows an answer as a message.
func messageOf[M proto.Message](to M, answer any) M {
	message, value := to.ProtoReflect(), reflect.ValueOf(answer)
	planOf(message.Descriptor(), value.Type()).show(message, value)
	return to
}

// show sets a message from the struct from.
func (p *plan) show(to protoreflect.Message, from reflect.Value) {
	for i := range p.steps {
		s := &p.steps[i]
		if s.kind == grouped {
			part := to.NewField(s.field)
			s.inner.show(part.Message(), from)
			if !empty(part.Message()) {
				to.Set(s.field, part)
			}
			continue
		}
		value, err := from.FieldByIndexErr(s.index)
		if err != nil || (s.optional || !s.field.HasPresence()) && value.IsZero() {
			continue // also an embedded pointer that is nil, and a value that messages leave out
		}
		if value.Kind() == reflect.Pointer {
			if value.IsNil() {
				continue
			}
			value = value.Elem()
		}
		s.show(to, value)
	}
}

func empty(m protoreflect.Message) bool {
	some := false
	m.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool { some = true; return false })
	return !some
}

// show sets one field.
func (s *step) show(to protoreflect.Message, from reflect.Value) {
	f := s.field
	switch {
	case s.kind == moment:
		if at := timestamp(from.Interface().(time.Time)); at != nil {
			to.Set(f, protoreflect.ValueOfMessage(at.ProtoReflect()))
		}
	case s.kind == sentence:
		to.Set(f, protoreflect.ValueOfString(text(from.Interface().(v1.Failure).Message)))
	case s.kind == rawJSON:
		showJSON(to, f, from.Bytes())
	case f.IsList():
		list := to.Mutable(f).List()
		for i := range from.Len() {
			if s.inner != nil {
				s.inner.show(list.AppendMutable().Message(), from.Index(i))
			} else {
				list.Append(scalar(f, from.Index(i)))
			}
		}
	case f.IsMap():
		all := to.Mutable(f).Map()
		for key, value := range from.Seq2() {
			all.Set(protoreflect.ValueOfString(text(key.String())).MapKey(), protoreflect.ValueOfString(text(value.String())))
		}
	case s.inner != nil:
		s.inner.show(to.Mutable(f).Message(), from)
	default:
		to.Set(f, scalar(f, from))
	}
}

// showJSON sets a text to JSON, without the quotes of a string, or a list of messages to
// a list in JSON. JSON that cannot be read is left out.
func showJSON(to protoreflect.Message, f protoreflect.FieldDescriptor, raw json.RawMessage) {
	if len(raw) == 0 || string(raw) == "null" {
		return
	}
	if !f.IsList() {
		value := string(raw)
		if raw[0] == '"' && json.Unmarshal(raw, &value) != nil {
			return
		}
		to.Set(f, protoreflect.ValueOfString(text(value)))
		return
	}
	var all []json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return
	}
	list := to.NewField(f)
	for _, one := range all {
		if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(one, list.List().AppendMutable().Message().Interface()) != nil {
			return
		}
	}
	to.Set(f, list)
}

func scalar(f protoreflect.FieldDescriptor, from reflect.Value) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text(from.String()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(from.Bool())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(from.Int()))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(from.Int())
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(from.Uint()))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(from.Float())
	}
	panic("rpc: " + string(f.FullName()) + " is of a kind that no answer has")
}

// timestamp is absent for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t.UTC().Truncate(time.Microsecond))
}

// text makes s valid UTF-8, which a message requires.
func text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, string(utf8.RuneError))
}
