package rpc

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// An unknown field is found at every place of a message.
func TestUnknownFieldsAreFound(t *testing.T) {
	strange := func() *structpb.Value {
		v := structpb.NewStringValue("a")
		v.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1))
		return v
	}
	in := func(v *structpb.Value) map[string]proto.Message {
		return map[string]proto.Message{
			"itself": v,
			"list":   &structpb.ListValue{Values: []*structpb.Value{structpb.NewNullValue(), v}},
			"map":    &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewNullValue(), "b": v}},
			"field":  structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"c": v}}),
		}
	}
	for where, m := range in(strange()) {
		if err := checkKnown(m); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%s: %v", where, err)
		}
	}
	for where, m := range in(structpb.NewStringValue("a")) {
		if err := checkKnown(m); err != nil {
			t.Errorf("%s without one: %v", where, err)
		}
	}
}
