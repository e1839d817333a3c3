package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rpc"
)

// onlyREST are the fields of answers that messages lack, by call; "" is any call.
var onlyREST = map[string][]string{
	"":                                   {"session_id", "volumes[].volume_id", "snapshots[].session_id"},
	"sandbox.v1.SandboxService/List":     {"sessions[].session_id", "sessions[].volumes[].volume_id"},
	"sandbox.v1.SandboxService/Fork":     {"forks[].session_id", "forks[].volumes[].volume_id", "forks[].error.code", "forks[].error.retry_after_seconds", "failed"},
	"sandbox.v1.SandboxService/Snapshot": {"template", "shape.cpus", "shape.memory_mb", "shape.disk_mb", "shape.pids", "engine_build", "uses"},
	"sandbox.v1.SandboxService/History":  {"snapshots[].template", "snapshots[].shape.cpus", "snapshots[].shape.memory_mb", "snapshots[].shape.disk_mb", "snapshots[].shape.pids", "snapshots[].engine_build", "snapshots[].uses", "snapshots[].volumes[].volume_id", "next_cursor"},
	"process.v1.ProcessService/List":     aboutOutput("processes[]."),
	"key.v1.KeyService/List":             {"keys[].key"},
	"process.v1.ProcessService/Get":      aboutOutput(""),
	"process.v1.ProcessService/Signal":   aboutOutput(""),
	"process.v1.ProcessService/Resize":   aboutOutput(""),
	"process.v1.ProcessService/End":      aboutOutput(""),
	"process.v1.ProcessService/Wait":     aboutOutput(""),
	"context.v1.ContextService/List":     {"contexts[].session_id"},
	"file.v1.FileService/Replace":        {"dry_run"},
}

// aboutOutput are the fields of a process about its output, which only a start has in a
// message.
func aboutOutput(in string) []string {
	all := []string{"session_id", "stdout", "stderr", "offset", "stdout_base64", "stderr_base64"}
	for i := range all {
		all[i] = in + all[i]
	}
	return all
}

// unset are fields of messages that no answer has.
var unset = map[protoreflect.FullName]bool{
	"cloudsandbox.sandbox.v1.Resources.type":    true, // of a request
	"cloudsandbox.sandbox.v1.Problem.traceback": true, // of an execution
}

// Every field of a call's request reaches the operation, and every field of its answer
// the client, with the names and values that REST has.
func TestUnaryCallsHaveTheFieldsOfREST(t *testing.T) {
	calls := gateway.UnaryCalls(&rest.API{})
	if len(calls) < 60 {
		t.Errorf("only %d calls are operations of REST", len(calls))
	}
	taken := map[string]reflect.Value{} // by procedure
	named := map[string]string{}
	answers := map[string]reflect.Value{}
	for path, op := range calls {
		answers[path] = filled(op.Gives, "")
		calls[path] = rpc.Unary{HasID: op.HasID, Unary: &rest.Unary{
			Takes: op.Takes, Gives: op.Gives,
			Do: func(_ context.Context, c rest.Call, fill func(any) error) (any, error) {
				in := reflect.New(op.Takes)
				if err := fill(in.Interface()); err != nil {
					return nil, err
				}
				taken[path], named[path] = in, c.ID
				return answers[path].Interface(), nil
			},
		}}
	}
	for _, service := range rpc.Services(&rpc.API{Unary: calls}) {
		for path, handler := range service.Calls {
			op, ok := calls[path]
			if !ok {
				continue
			}
			name := strings.TrimPrefix(path, "/cloudsandbox.")
			d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(path[1:], "/", ".")))
			if err != nil {
				t.Fatal(err)
			}
			method := d.(protoreflect.MethodDescriptor)
			request := dynamicpb.NewMessage(method.Input())
			fillMessage(request)
			r := httptest.NewRequest("POST", path, strings.NewReader(string(messageJSON(t, request))))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			if err := rpc.Serve(handler, w, r, sandbox.Identity{Tenant: "t"}); err != nil || w.Code != http.StatusOK {
				t.Errorf("%s %s: %v, %d %s", name, messageJSON(t, request), err, w.Code, w.Body)
				continue
			}

			asked := linesOf(t, messageJSON(t, request), true)
			got := linesOf(t, valueJSON(t, taken[path].Elem()), false)
			if op.HasID {
				if named[path] == "" || !deleteLine(asked, named[path]) {
					t.Errorf("%s is about %q", name, named[path])
				}
			}
			for line := range asked {
				if !got[line] {
					t.Errorf("%s drops %s of a request: it takes %v", name, line, slices.Sorted(maps.Keys(got)))
				}
			}
			for line := range got {
				if !asked[line] {
					t.Errorf("%s takes %s, and was sent %v", name, line, slices.Sorted(maps.Keys(asked)))
				}
			}

			sent := linesOf(t, w.Body.Bytes(), true)
			want := linesOf(t, valueJSON(t, answers[path]), false)
			for line := range sent {
				if !want[line] {
					t.Errorf("%s answers %s, and REST %v", name, line, slices.Sorted(maps.Keys(want)))
				}
			}
			for line := range want {
				field, _, _ := strings.Cut(line, "=")
				if !sent[line] && !slices.Contains(slices.Concat(onlyREST[""], onlyREST[name]), field) {
					t.Errorf("%s lacks %s, which REST has: %s", name, line, w.Body)
				}
			}
			answer := dynamicpb.NewMessage(method.Output())
			if err := protojson.Unmarshal(w.Body.Bytes(), answer); err != nil {
				t.Fatal(err)
			}
			everyField(t, name, answer)
		}
	}
}

// deleteLine removes the only line with a value.
func deleteLine(lines map[string]bool, value string) bool {
	for line := range lines {
		if strings.HasSuffix(line, "="+value) {
			delete(lines, line)
			return true
		}
	}
	return false
}

// everyField checks that an answer has all fields of its type.
func everyField(t *testing.T, name string, m protoreflect.Message) {
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		size := m.Descriptor().FullName() == "cloudsandbox.sandbox.v1.Resources" && (f.Name() == "disk_mb" || f.Name() == "bandwidth_mbps") // of a shape, and of limits
		if !m.Has(f) && !unset[f.FullName()] && !size {
			t.Errorf("%s answers without %s", name, f.FullName())
		}
		switch {
		case f.Kind() != protoreflect.MessageKind || f.IsMap():
		case f.IsList():
			for j := range m.Get(f).List().Len() {
				everyField(t, name, m.Get(f).List().Get(j).Message())
			}
		case m.Has(f) && f.Message().ParentFile().Package() != "google.protobuf":
			everyField(t, name, m.Get(f).Message())
		}
	}
}

var aTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// filled is a value of a type whose every field has a value of its own.
func filled(of reflect.Type, name string) reflect.Value {
	v := reflect.New(of).Elem()
	switch of {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(aTime))
		return v
	case reflect.TypeFor[json.RawMessage]():
		raw := `{"mode":"none","allow":["a.example"]}`
		if name == "secrets" {
			raw = `[{"name":"N","host":"h.example","header":"H","format":"x {value}"}]`
		}
		v.SetBytes([]byte(raw))
		return v
	}
	switch of.Kind() {
	case reflect.String:
		v.SetString("text of " + name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(len(name)) + 7)
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(uint64(len(name)) + 7)
	case reflect.Float64:
		v.SetFloat(float64(len(name)) + 0.5)
	case reflect.Pointer:
		v.Set(reflect.New(of.Elem()))
		v.Elem().Set(filled(of.Elem(), name))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(of, 1, 1))
		v.Index(0).Set(filled(of.Elem(), name))
	case reflect.Map:
		v.Set(reflect.MakeMap(of))
		v.SetMapIndex(reflect.ValueOf("k").Convert(of.Key()), filled(of.Elem(), name))
	case reflect.Struct:
		for i := range of.NumField() {
			f := of.Field(i)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			v.Field(i).Set(filled(f.Type, tag))
		}
	default:
		panic(of.String())
	}
	return v
}

// validFields are values of fields that not any text may have.
var validFields = map[string]string{
	"network": `{"mode":"none","allow":["a.example"]}`, "names": "api.example.com", "host": "api.example.com", "header": "Authorization", "format": "x {value}",
	"signal": "TERM",
}

func fillMessage(m protoreflect.Message) {
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		name := string(f.Name())
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), protoreflect.ValueOfString("value of "+name))
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			fillMessage(m.Mutable(f).List().AppendMutable().Message())
		case f.IsList():
			m.Mutable(f).List().Append(filledScalar(f))
		case f.Kind() == protoreflect.MessageKind:
			fillMessage(m.Mutable(f).Message())
		default:
			m.Set(f, filledScalar(f))
		}
	}
}

func filledScalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	name := string(f.Name())
	switch f.Kind() {
	case protoreflect.StringKind:
		text, ok := validFields[name]
		switch in := f.Parent().Name(); {
		case in == "Ports" && name == "host":
			text = "${PORT}.example.com"
		case in == "VolumeMount" && name == "path":
			text = "/data"
		case in == "SecretUse" && name == "name":
			text = "SECRET"
		case !ok:
			text = "text of " + name
		}
		return protoreflect.ValueOfString(text)
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(len(name)) + 7)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(len(name)) + 7)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(len(name)) + 7)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(len(name)) + 0.5)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(name))
	}
	panic(f.FullName())
}

func messageJSON(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func valueJSON(t *testing.T, v reflect.Value) []byte {
	t.Helper()
	raw, err := json.Marshal(v.Interface())
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// groups are messages in messages whose fields REST has in the object around them.
var groups = []string{
	"sandbox", "snapshot", "process", "entry", "context", "key", "secret", "volume", "build", "template", "head", "status", "position", "repository", "pty", "files",
}

// linesOf returns the values in JSON, each as the path to it, "=" and the text of the
// value. ofMessage is of the JSON of a message, whose form is made REST's.
func linesOf(t *testing.T, raw []byte, ofMessage bool) map[string]bool {
	t.Helper()
	saved := !strings.Contains(string(raw), `"pattern"`) // files_only of a search is another
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	lines := map[string]bool{}
	var add func(path []string, value any)
	add = func(path []string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for name, inner := range value {
				add(append(slices.Clone(path), name), inner)
			}
			return
		case []any:
			for _, inner := range value {
				to := slices.Clone(path)
				to[len(to)-1] += "[]"
				add(to, inner)
			}
			return
		}
		text, leaf := fmt.Sprint(value), path[len(path)-1]
		within := slices.DeleteFunc(slices.Clone(path[:len(path)-1]), func(name string) bool { return slices.Contains(groups, name) })
		name := strings.Join(append(within, leaf), ".")
		switch {
		case !ofMessage:
		case leaf == "network" && text[0] == '{': // JSON in a text
			var rules map[string]any
			if err := json.Unmarshal([]byte(text), &rules); err != nil {
				t.Fatal(err)
			}
			add(path, rules)
			return
		case strings.HasPrefix(leaf, "remove_"):
			name, text = strings.TrimSuffix(strings.TrimPrefix(leaf, "remove_"), "[]")+"."+text, "<nil>"
		case leaf == "files_only" && saved:
			name, text = "memory", "false"
		case name == "secret": // of a key
			name = "key"
		case leaf == "created" && text == "true":
			return // REST says it by the status
		default:
			name = otherNames.Replace(name)
		}
		if text != "" {
			lines[name+"="+text] = true
		}
	}
	add(nil, value)
	return lines
}

// otherNames are the names of REST instead of those of messages.
var otherNames = strings.NewReplacer(
	"copies[].error", "forks[].error.message", "copies[]", "forks[]", "sandboxes[]", "sessions[]", "secrets.uses[]", "secrets[]", "hosts.names[]", "hosts[]",
)
