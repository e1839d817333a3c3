package gateway_test

import (
	"bytes"
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
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rpc"
	internalrpc "github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
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
	t.Parallel()
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
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // messages have large numbers as texts
	if err := d.Decode(&value); err != nil {
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

// A call and a request of REST for the same operation have the same answer, or fail with
// the same code and sentence, and the audit log has the same target.
func TestDoorsAnswerAlike(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Token = f.MintAs("owner", "owner")
	id := f.WithProcesses()
	f.StartProcess(id, `"command":"true","name":"p"`)
	for _, prepare := range [][2]string{
		{"/api/v1/secrets", `{"name":"KEY","value":"v","hosts":["api.example.com"],"description":"d"}`},
		{"/api/v1/volumes", `{"name":"data"}`},
		{"/api/v1/keys", `{"name":"robot","expires_in_seconds":3600}`},
		{"/api/v1/sessions/" + id + "/snapshots", `{"name":"saved"}`},
		{"/api/v1/sessions", `{"name":"web","metadata":{"a":"b"},"network":{"mode":"none","allow":["a.example"]},"ports":{"private":true,"tls":[443]},"volumes":[{"volume":"data","path":"/data"}],
			"secrets":[{"name":"KEY","host":"api.example.com","header":"Authorization"}],"idle_timeout_seconds":60,"resources":{"memory_mb":256,"bandwidth_mbps":5}}`},
		{"/api/v1/templates", `{"template":"mine","source":"oci:x","files":[{"path":"/a","content":"b","mode":"0700","owner":"user"}]}`},
		{"/api/v1/sessions", `{"name":"gone"}`},
	} {
		if a := f.Do("POST", prepare[0], prepare[1]); a.Status >= 300 {
			t.Fatalf("%s: %d %s", prepare[0], a.Status, a.Body)
		}
	}
	f.Do("DELETE", "/api/v1/sessions/gone", "")
	about := "?sandbox_id=" + id
	for _, tt := range []struct{ request, body, call, message string }{
		{"GET /api/v1/sessions/web", "", "sandbox.v1.SandboxService/Get", `{"sandbox_id":"web"}`},
		{"GET /api/v1/sessions/none", "", "sandbox.v1.SandboxService/Get", `{"sandbox_id":"none"}`},
		{"GET /api/v1/sessions?state=running,ended&metadata[a]=b", "", "sandbox.v1.SandboxService/List", `{"states":["running","ended"],"metadata":{"a":"b"}}`},
		{"GET /api/v1/sessions?limit=0", "", "sandbox.v1.SandboxService/List", `{"limit":0}`},
		{"GET /api/v1/sessions?state=ended", "", "sandbox.v1.SandboxService/List", `{"states":["ended"]}`},
		{"PATCH /api/v1/sessions/web", `{"metadata":{"c":"d","a":null},"user":"root"}`, "sandbox.v1.SandboxService/Update", `{"sandbox_id":"web","metadata":{"c":"d"},"remove_metadata":["a"],"user":"root"}`},
		{"PATCH /api/v1/sessions/web", `{"timeout_seconds":-1}`, "sandbox.v1.SandboxService/Update", `{"sandbox_id":"web","timeout_seconds":-1}`},
		{"PATCH /api/v1/sessions/web", `{"resources":{"disk_mb":1}}`, "sandbox.v1.SandboxService/Update", `{"sandbox_id":"web","resources":{"disk_mb":1}}`},
		{"PATCH /api/v1/sessions/web", `{"network":"maybe"}`, "sandbox.v1.SandboxService/Update", `{"sandbox_id":"web","network":"maybe"}`},
		{"PATCH /api/v1/sessions/none", `{"name":"b"}`, "sandbox.v1.SandboxService/Update", `{"sandbox_id":"none","name":"b"}`},
		{"POST /api/v1/sessions/web/timeout", `{}`, "sandbox.v1.SandboxService/SetTimeout", `{"sandbox_id":"web"}`},
		{"POST /api/v1/sessions/web/timeout", `{"timeout_seconds":-1}`, "sandbox.v1.SandboxService/SetTimeout", `{"sandbox_id":"web","timeout_seconds":-1}`},
		{"POST /api/v1/sessions/none/touch", ``, "sandbox.v1.SandboxService/Touch", `{"sandbox_id":"none"}`},
		{"GET /api/v1/sessions/" + id + "/snapshots", "", "sandbox.v1.SandboxService/History", `{"sandbox_id":"` + id + `"}`},
		{"POST /api/v1/sessions/" + id + "/snapshots", `{"name":"a b"}`, "sandbox.v1.SandboxService/Snapshot", `{"sandbox_id":"` + id + `","name":"a b"}`},
		{"POST /api/v1/sessions/" + id + "/rollback", `{}`, "sandbox.v1.SandboxService/Rollback", `{"sandbox_id":"` + id + `"}`},
		{"POST /api/v1/sessions/" + id + "/rollback", `{"snapshot_id":"none"}`, "sandbox.v1.SandboxService/Rollback", `{"sandbox_id":"` + id + `","snapshot_id":"none"}`},
		{"POST /api/v1/sessions/" + id + "/fork", `{"count":0}`, "sandbox.v1.SandboxService/Fork", `{"sandbox_id":"` + id + `","count":0}`},
		{"POST /api/v1/sessions/gone/pause", `{"memory":false}`, "sandbox.v1.SandboxService/Pause", `{"sandbox_id":"gone","files_only":true}`},
		{"DELETE /api/v1/sessions/gone", ``, "sandbox.v1.SandboxService/End", `{"sandbox_id":"gone"}`},
		{"GET /api/v1/processes" + about, "", "process.v1.ProcessService/List", `{"sandbox_id":"` + id + `"}`},
		{"GET /api/v1/processes/p" + about, "", "process.v1.ProcessService/Get", `{"sandbox_id":"` + id + `","process_id":"p"}`},
		{"GET /api/v1/processes/p", "", "process.v1.ProcessService/Get", `{"process_id":"p"}`},
		{"GET /api/v1/processes/p/wait" + about, "", "process.v1.ProcessService/Wait", `{"sandbox_id":"` + id + `","process_id":"p"}`},
		{"GET /api/v1/processes/p/wait" + about + "&for=x", "", "process.v1.ProcessService/Wait", `{"sandbox_id":"` + id + `","process_id":"p","for":"x"}`},
		{"GET /api/v1/processes/p/wait" + about + "&timeout_seconds=-1", "", "process.v1.ProcessService/Wait", `{"sandbox_id":"` + id + `","process_id":"p","timeout_seconds":-1}`},
		{"POST /api/v1/processes/p/signal" + about, `{"signal":"no"}`, "process.v1.ProcessService/Signal", `{"sandbox_id":"` + id + `","process_id":"p","signal":"no"}`},
		{"POST /api/v1/processes/p/resize" + about, `{}`, "process.v1.ProcessService/Resize", `{"sandbox_id":"` + id + `","process_id":"p"}`},
		{"POST /api/v1/processes/p/stdin" + about, `a`, "process.v1.ProcessService/Input", `{"sandbox_id":"` + id + `","process_id":"p","data":"YQ=="}`},
		{"DELETE /api/v1/processes/p" + about, "", "process.v1.ProcessService/End", `{"sandbox_id":"` + id + `","process_id":"p"}`},
		{"GET /api/v1/contexts" + about, "", "context.v1.ContextService/List", `{"sandbox_id":"` + id + `"}`},
		{"POST /api/v1/contexts", `{"sandbox_id":"` + id + `","language":"x"}`, "context.v1.ContextService/Create", `{"sandbox_id":"` + id + `","language":"x"}`},
		{"POST /api/v1/contexts/none/restart", `{"sandbox_id":"` + id + `"}`, "context.v1.ContextService/Restart", `{"sandbox_id":"` + id + `","context_id":"none"}`},
		{"GET /api/v1/files/list" + about + "&path=/workspace", "", "file.v1.FileService/List", `{"sandbox_id":"` + id + `","path":"/workspace"}`},
		{"GET /api/v1/files/list" + about + "&path=/&depth=99", "", "file.v1.FileService/List", `{"sandbox_id":"` + id + `","path":"/","depth":99}`},
		{"GET /api/v1/files/stat" + about + "&path=/workspace", "", "file.v1.FileService/Stat", `{"sandbox_id":"` + id + `","path":"/workspace"}`},
		{"GET /api/v1/files/stat" + about, "", "file.v1.FileService/Stat", `{"sandbox_id":"` + id + `"}`},
		{"GET /api/v1/files/stat?path=a", "", "file.v1.FileService/Stat", `{"path":"a"}`},
		{"POST /api/v1/files/chmod", `{"sandbox_id":"` + id + `","path":"a","mode":"x"}`, "file.v1.FileService/Chmod", `{"sandbox_id":"` + id + `","path":"a","mode":"x"}`},
		{"POST /api/v1/files/replace", `{"sandbox_id":"` + id + `","path":"a","pattern":"x"}`, "file.v1.FileService/Replace", `{"sandbox_id":"` + id + `","files":{"path":"a"},"pattern":"x"}`},
		{"GET /api/v1/files/changes" + about + "&path=/workspace&since=x", "", "file.v1.FileService/Changes", `{"sandbox_id":"` + id + `","path":"/workspace","since":"x"}`},
		{"DELETE /api/v1/files" + about + "&path=/", "", "file.v1.FileService/Remove", `{"sandbox_id":"` + id + `","path":"/"}`},
		{"POST /api/v1/git/clone", `{"sandbox_id":"` + id + `","url":"/a","depth":-1}`, "git.v1.GitService/Clone", `{"repository":{"sandbox_id":"` + id + `"},"url":"/a","depth":-1}`},
		{"POST /api/v1/git/status", `{"sandbox_id":"none"}`, "git.v1.GitService/Status", `{"repository":{"sandbox_id":"none"}}`},
		{"GET /api/v1/keys", "", "key.v1.KeyService/List", `{}`},
		{"POST /api/v1/keys", `{"name":"k","expires_in_seconds":0.5}`, "key.v1.KeyService/Create", `{"name":"k","expires_in_seconds":0.5}`},
		{"POST /api/v1/keys/none/rotate", `{"overlap_seconds":-1}`, "key.v1.KeyService/Rotate", `{"key_id":"none","overlap_seconds":-1}`},
		{"DELETE /api/v1/keys/none", ``, "key.v1.KeyService/Revoke", `{"key_id":"none"}`},
		{"GET /api/v1/secrets", "", "secret.v1.SecretService/List", `{}`},
		{"PUT /api/v1/secrets/none", `{"value":"v"}`, "secret.v1.SecretService/Replace", `{"name":"none","value":"v"}`},
		{"POST /api/v1/secrets", `{"name":"H","value":"v","hosts":["a b"]}`, "secret.v1.SecretService/Create", `{"name":"H","value":"v","hosts":{"names":["a b"]}}`},
		{"GET /api/v1/volumes", "", "volume.v1.VolumeService/List", `{}`},
		{"GET /api/v1/volumes/data", "", "volume.v1.VolumeService/Get", `{"volume_id":"data"}`},
		{"DELETE /api/v1/volumes/data", "", "volume.v1.VolumeService/Delete", `{"volume_id":"data"}`},
		{"GET /api/v1/templates", "", "template.v1.TemplateService/List", `{}`},
		{"GET /api/v1/templates/base", "", "template.v1.TemplateService/Get", `{"template":"base"}`},
		{"DELETE /api/v1/templates/none", "", "template.v1.TemplateService/Remove", `{"template":"none"}`},
		{"GET /api/v1/builds", "", "template.v1.TemplateService/ListBuilds", `{}`},
		{"GET /api/v1/builds/none", "", "template.v1.TemplateService/GetBuild", `{"build_id":"none"}`},
	} {
		method, path, _ := strings.Cut(tt.request, " ")
		before := len(f.Audit())
		a := f.Do(method, path, tt.body)
		between := len(f.Audit())
		answers, failed := f.Say(f.Token, tt.call, tt.message)
		entries := f.Audit()
		if a.Status >= 300 {
			var body v1.FailureBody
			if err := json.Unmarshal(a.Body, &body); err != nil {
				t.Fatalf("%s: %v", tt.request, err)
			}
			if body.Error.Message != failed.Message || internalrpc.Public(body.Error.Code).Code().String() != failed.Code {
				t.Errorf("%s fails with %s, and %s with %+v", tt.request, a.Body, tt.call, failed)
			}
		} else if len(answers) != 1 {
			t.Errorf("%s answers %s, and %s fails with %+v", tt.request, a.Body, tt.call, failed)
		} else {
			want, sent := someLines(linesOf(t, a.Body, false)), someLines(linesOf(t, []byte(answers[0]), true))
			maps.DeleteFunc(want, func(line string, _ bool) bool {
				field, _, _ := strings.Cut(line, "=")
				return !sent[line] && slices.Contains(slices.Concat(onlyREST[""], onlyREST[tt.call]), field)
			})
			if !maps.Equal(want, sent) {
				t.Errorf("%s answers %v,\n%s %v", tt.request, slices.Sorted(maps.Keys(want)), tt.call, slices.Sorted(maps.Keys(sent)))
			}
		}
		if len(entries)-between != between-before {
			t.Errorf("%s writes %d entries to the audit log, and %s %d", tt.request, between-before, tt.call, len(entries)-between)
			continue
		}
		for i, e := range entries[between:] {
			if other := entries[before+i]; e.Target != other.Target || e.Sandbox != other.Sandbox || e.Status != other.Status || e.Code != other.Code {
				t.Errorf("the audit log has %+v of %s, and %+v of %s", other, tt.request, e, tt.call)
			}
		}
	}
}

// someLines are the lines whose values messages do not leave out. All times are the same,
// because the fake templates are always new.
func someLines(lines map[string]bool) map[string]bool {
	some := map[string]bool{}
	for line := range lines {
		field, value, _ := strings.Cut(line, "=")
		if _, err := time.Parse(time.RFC3339Nano, value); err == nil {
			value = "a time"
		}
		if value != "false" && value != "0" && value != "" {
			some[field+"="+value] = true
		}
	}
	return some
}
