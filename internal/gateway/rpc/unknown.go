package rpc

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// checkKnown returns Invalid for a message with an unknown field: ignoring it would
// silently drop part of the request.
func checkKnown(msg any) error {
	m, ok := msg.(proto.Message)
	if !ok {
		return nil
	}
	return checkFields(m.ProtoReflect())
}

func checkFields(m protoreflect.Message) error {
	if fields := m.GetUnknown(); len(fields) > 0 {
		detail := fmt.Sprintf("%s has a field that this server does not know", m.Descriptor().Name())
		if name := markedName(fields); name != "" {
			detail += fmt.Sprintf(": %.128q", name)
		}
		return sandbox.Errorf(sandbox.Invalid, "%s", detail).WithCause(sandbox.ErrUnknown)
	}
	var err error
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.MapValue().Kind() == protoreflect.MessageKind:
			v.Map().Range(func(_ protoreflect.MapKey, one protoreflect.Value) bool {
				err = checkFields(one.Message())
				return err == nil
			})
		case f.IsMap(), f.Kind() != protoreflect.MessageKind:
		case f.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				err = checkFields(v.List().Get(i).Message())
			}
		default:
			err = checkFields(v.Message())
		}
		return err == nil
	})
	return err
}

// jsonCodec is Connect's JSON with REST's field names. It leaves a mark for checkKnown
// in a message with an unknown field: the error of a codec reaches the client without
// versions.
type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (jsonCodec) Marshal(msg any) ([]byte, error) {
	m, ok := msg.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", msg)
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
}

func (jsonCodec) Unmarshal(data []byte, msg any) error {
	m, ok := msg.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", msg)
	}
	if len(data) == 0 {
		return nil // as in REST
	}
	err := protojson.Unmarshal(data, m)
	if err == nil {
		return nil
	}
	name := unknownName(data, m.ProtoReflect().Descriptor())
	if name == "" || (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, m) != nil {
		return err
	}
	m.ProtoReflect().SetUnknown(mark(name))
	return nil
}

// unknownName returns the path of a field that a message, in JSON, has and its type
// does not; empty if the type has all fields.
func unknownName(data []byte, d protoreflect.MessageDescriptor) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil || strings.HasPrefix(string(d.FullName()), "google.protobuf.") { // whose JSON is of its own kind
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		f := d.Fields().ByJSONName(name)
		if f == nil {
			f = d.Fields().ByTextName(name)
		}
		if f == nil {
			return name
		}
		for _, below := range messagesIn(fields[name], f) {
			if name := unknownName(below, messageOfField(f)); name != "" {
				return string(f.Name()) + "." + name
			}
		}
	}
	return ""
}

// messageOfField is the type of the messages of a field; nil: it has none.
func messageOfField(f protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if f.IsMap() {
		return f.MapValue().Message()
	}
	return f.Message()
}

// messagesIn returns the messages in a field's JSON.
func messagesIn(data json.RawMessage, f protoreflect.FieldDescriptor) []json.RawMessage {
	switch {
	case messageOfField(f) == nil:
		return nil
	case f.IsMap():
		var all map[string]json.RawMessage
		_ = json.Unmarshal(data, &all) // protojson says what is wrong with it
		return slices.Collect(maps.Values(all))
	case f.IsList():
		var all []json.RawMessage
		_ = json.Unmarshal(data, &all) // protojson says what is wrong with it
		return all
	}
	return []json.RawMessage{data}
}

// markNumber is the field of a mark. No message of ours has it.
const markNumber = protowire.MaxValidNumber

// mark returns an unknown field that holds the name of one.
func mark(name string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, markNumber, protowire.BytesType), name)
}

// markedName returns the name in a mark; empty: the fields are not one.
func markedName(fields []byte) string {
	number, kind, n := protowire.ConsumeTag(fields)
	if n < 0 || number != markNumber || kind != protowire.BytesType {
		return ""
	}
	name, n := protowire.ConsumeString(fields[n:])
	if n < 0 {
		return ""
	}
	return name
}
