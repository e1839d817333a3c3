package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/cloud-sandbox/cloud-sandbox"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1/templatev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

const createCall = "/cloudsandbox.sandbox.v1.SandboxService/Create"

// The same request creates the same Sandbox through REST and through Connect, and is
// refused by both for the same reason.
func TestCreateThroughEveryDoor(t *testing.T) {
	f := newFixture(t)
	auth := []string{"Authorization", "Bearer " + f.token, "Content-Type", "application/json"}
	f.do("POST", "/api/v1/secrets", `{"name":"KEY","value":"v"}`)
	for _, tt := range []struct {
		body string
		want func(sandbox.Sandbox) bool
		code sandbox.Code // of a refusal
	}{
		{body: `{}`, want: func(s sandbox.Sandbox) bool {
			return s.OnTimeout == sandbox.OnTimeoutPause && s.Timeout == sandbox.DefaultSessionTimeout && s.Ingress == "" && s.Secrets == ""
		}},
		{body: `{"on_timeout":"end"}`, want: func(s sandbox.Sandbox) bool { return s.OnTimeout == sandbox.OnTimeoutEnd }},
		{body: `{"resources":{"type":"basic"}}`, want: func(s sandbox.Sandbox) bool {
			return s.Shape.CPUs == 0.25 && s.Shape.MemoryBytes == 1024<<20
		}},
		{body: `{"resources":{"type":"basic","memory_mb":512}}`, want: func(s sandbox.Sandbox) bool {
			return s.Shape.CPUs == 0.25 && s.Shape.MemoryBytes == 512<<20
		}},
		{body: `{"ports":{"private":true,"exceptions":[8080,80],"host":"web.example:${PORT}","tls":[443]}}`, want: func(s sandbox.Sandbox) bool {
			r := s.Ingress.RulesOrClosed()
			return r.Private && reflect.DeepEqual(r.Exceptions, []uint16{80, 8080}) && r.Host == "web.example:${PORT}" && reflect.DeepEqual(r.TLSPorts, []uint16{443})
		}},
		{body: `{"secrets":[{"name":"KEY","host":"api.example.com","header":"Authorization","format":"Bearer {value}"}]}`, want: func(s sandbox.Sandbox) bool {
			uses, err := s.Secrets.List()
			return err == nil && len(uses) == 1 && uses[0].Secret == "KEY" && uses[0].Host == "api.example.com" && uses[0].Format == "Bearer {value}"
		}},
		{body: `{"if_exists":"perhaps"}`, code: sandbox.Invalid},
		{body: `{"timeout_seconds":0}`, code: sandbox.Invalid},
		{body: `{"resources":{"type":"huge"}}`, code: sandbox.Invalid},
		{body: `{"resources":{"memory_mb":1}}`, code: sandbox.Invalid},
		{body: `{"ports":{"exceptions":[0]}}`, code: sandbox.Invalid},
		{body: `{"ports":{"tls":[65536]}}`, code: sandbox.Invalid},
		{body: `{"ports":{"host":"a b"}}`, code: sandbox.Invalid},
		{body: `{"secrets":[{"host":"api.example.com","header":"A","format":"x"}]}`, code: sandbox.Invalid},
		{body: `{"secrets":[{"name":"KEY","host":"*","header":"A"}]}`, code: sandbox.Invalid},
		{body: `{"on_timeout":"explode"}`, code: sandbox.Invalid},
	} {
		sentences := map[string]bool{}
		var views []map[string]any
		for _, path := range []string{"/api/v1/sessions", createCall} {
			a := f.plain("POST", path, tt.body, auth...)
			if tt.code != "" {
				var rest struct {
					Error struct{ Code, Message string }
				}
				var call struct{ Code, Message string }
				if json.Unmarshal(a.body, &rest) != nil || json.Unmarshal(a.body, &call) != nil || a.status != 400 {
					t.Errorf("%s through %s: %d %s", tt.body, path, a.status, a.body)
				}
				sentences[rest.Error.Message+call.Message] = true
				continue
			}
			var made struct {
				ID      string `json:"sandbox_id"`
				Sandbox struct {
					ID string `json:"sandbox_id"`
				}
			}
			if err := json.Unmarshal(a.body, &made); err != nil || a.status >= 300 {
				t.Fatalf("%s through %s: %d %s", tt.body, path, a.status, a.body)
			}
			id := made.ID + made.Sandbox.ID
			if s := f.sandboxes.record(id); !tt.want(s) {
				t.Errorf("%s through %s created %+v", tt.body, path, s)
			}
			var view map[string]any
			f.plain("GET", "/api/v1/sessions/"+id, "", auth...).into(t, 200, &view)
			var called struct{ Sandbox map[string]any }
			f.plain("POST", strings.Replace(createCall, "/Create", "/Get", 1), `{"sandbox_id":"`+id+`"}`, auth...).into(t, 200, &called)
			if fmt.Sprint(called.Sandbox["secrets"]) != fmt.Sprint(view["secrets"]) || !covers(view["ports"], called.Sandbox["ports"]) {
				t.Errorf("%s is shown by REST as %v, and by Connect as %v", tt.body, view, called.Sandbox)
			}
			for _, own := range []string{"sandbox_id", "session_id", "created_at", "started_at", "deadline"} {
				delete(view, own)
			}
			views = append(views, view)
		}
		if len(sentences) > 1 {
			t.Errorf("%s is refused with %v", tt.body, sentences)
		}
		if len(views) == 2 && !reflect.DeepEqual(views[0], views[1]) {
			t.Errorf("%s is %v through REST, and %v through Connect", tt.body, views[0], views[1])
		}
	}
}

// covers reports whether part has what all has, but for values that say nothing, which
// messages leave out.
func covers(all, part any) bool {
	of, ok := part.(map[string]any)
	for key, value := range all.(map[string]any) {
		if value != false && (!ok || fmt.Sprint(of[key]) != fmt.Sprint(value)) {
			return false
		}
	}
	return true
}

// Ports and secrets change by Update of Connect as by PATCH of REST, and stay when they
// are not named.
func TestUpdateOfPortsAndSecretsByCalls(t *testing.T) {
	f := newFixture(t)
	f.do("POST", "/api/v1/secrets", `{"name":"KEY","value":"v"}`)
	f.do("POST", "/api/v1/sessions", `{"name":"a"}`)
	const update = "sandbox.v1.SandboxService/Update"
	f.says(update, `{"sandbox_id":"a","ports":{"private":true},"secrets":{"uses":[{"name":"KEY","host":"api.example.com","header":"A"}]}}`, `"private":true`, `"name":"KEY"`)
	f.says(update, `{"sandbox_id":"a","metadata":{"b":"c"}}`, `"private":true`, `"name":"KEY"`)
	if got := f.says(update, `{"sandbox_id":"a","ports":{},"secrets":{}}`); strings.Contains(got, "private") || strings.Contains(got, "KEY") {
		t.Errorf("afterwards it is %s", got)
	}
	f.refusesCalls("", []badCall{
		{update, []string{`{"sandbox_id":"a","resources":{"type":"basic"}}`}, "failed_precondition", "instance type"},
		{update, []string{`{"sandbox_id":"a","ports":{"tls":[0]}}`}, "invalid_argument", "port"},
		{update, []string{`{"sandbox_id":"a","secrets":{"uses":[{"name":"a b"}]}}`}, "invalid_argument", "name"},
	})
}

// Every unary call of an operation that a key makes idempotent takes effect once.
func TestIdempotencyByCalls(t *testing.T) {
	f := newFixture(t)
	f.token = f.mintAs("owner", "owner")
	auth := []string{"Authorization", "Bearer " + f.token, "Content-Type", "application/json"}
	id := f.withProcesses()
	var key struct {
		Key struct {
			ID string `json:"key_id"`
		}
	}
	if err := json.Unmarshal([]byte(f.says("key.v1.KeyService/Create", `{"name":"mine"}`)), &key); err != nil {
		t.Fatal(err)
	}
	bodies := map[string][2]string{ // the same, and another request
		"sandbox.v1.SandboxService/Create":   {`{"name":"web"}`, `{"name":"other"}`},
		"sandbox.v1.SandboxService/Fork":     {`{"sandbox_id":"` + id + `"}`, `{"sandbox_id":"` + id + `","count":2}`},
		"sandbox.v1.SandboxService/Snapshot": {`{"sandbox_id":"` + id + `"}`, `{"sandbox_id":"` + id + `","name":"s"}`},
		"key.v1.KeyService/Create":           {`{"name":"k"}`, `{"name":"l"}`},
		"key.v1.KeyService/Rotate":           {`{"key_id":"` + key.Key.ID + `"}`, `{"key_id":"none"}`},
		"secret.v1.SecretService/Create":     {`{"name":"A","value":"v"}`, `{"name":"A","value":"w"}`},
		"volume.v1.VolumeService/Create":     {`{"name":"v"}`, `{"name":"w"}`},
		"context.v1.ContextService/Create":   {`{"sandbox_id":"` + id + `","language":"python"}`, `{"sandbox_id":"` + id + `","language":"bash"}`},
	}
	for _, rt := range f.server.RouteTable() {
		name := strings.TrimPrefix(rt.Path, "/cloudsandbox.")
		if !rt.Call || !rt.Op.Once || name == "template.v1.TemplateService/Build" { // a stream
			continue
		}
		body, ok := bodies[name]
		if !ok {
			t.Errorf("no request for %s", name)
			continue
		}
		delete(bodies, name)
		ask := func(body, key string) (a answer, got map[string]any) {
			a = f.plain("POST", rt.Path, body, append(auth, idempotent, key)...)
			if err := json.Unmarshal(a.body, &got); err != nil {
				t.Fatalf("%s: %v: %s", name, err, a.body)
			}
			return a, got
		}
		first, made := ask(body[0], "k-"+name)
		again, repeated := ask(body[0], "k-"+name)
		if first.status != 200 || again.status != 200 || first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: %d %s, then %d %s", name, first.status, first.body, again.status, again.body)
		}
		if rt.Op.ShowsSecret {
			if made["secret"] == nil || repeated["secret"] != nil {
				t.Errorf("%s shows the secret as %v, then as %v", name, made["secret"], repeated["secret"])
			}
			delete(made, "secret")
		}
		if !reflect.DeepEqual(made, repeated) {
			t.Errorf("%s answers %v, then %v", name, made, repeated)
		}
		if a, _ := ask(body[1], "k-"+name); a.status != 400 || !strings.Contains(string(a.body), "another request") {
			t.Errorf("%s with another body: %d %s", name, a.status, a.body)
		}
		if a, _ := ask(body[0], "a b"); a.status != 400 || !strings.Contains(string(a.body), idempotent) {
			t.Errorf("%s with a bad key: %d %s", name, a.status, a.body)
		}
	}
	if len(bodies) > 0 {
		t.Errorf("these are not idempotent: %v", bodies)
	}
}

// The audit log names the target of a call that is replayed, and of one that is refused
// for its key.
func TestReplaysHaveATarget(t *testing.T) {
	f := newFixture(t)
	f.token = f.mintAs("owner", "owner")
	var key struct {
		Key struct {
			ID string `json:"key_id"`
		}
	}
	if err := json.Unmarshal([]byte(f.says("key.v1.KeyService/Create", `{"name":"mine"}`)), &key); err != nil {
		t.Fatal(err)
	}
	box := f.withProcesses()
	for call, tt := range map[string]struct{ field, id, first, other string }{
		"key.v1.KeyService/Rotate":         {"key_id", key.Key.ID, "", `,"overlap_seconds":1`},
		"sandbox.v1.SandboxService/Fork":   {"sandbox_id", box, "", `,"count":2`},
		"context.v1.ContextService/Create": {"sandbox_id", box, `,"language":"python"`, `,"language":"bash"`},
	} {
		ask := func(other string) sandbox.AuditEntry {
			return f.audit1(func() {
				f.plain("POST", "/cloudsandbox."+call, `{"`+tt.field+`":"`+tt.id+`"`+other+`}`,
					"Authorization", "Bearer "+f.token, "Content-Type", "application/json", idempotent, "k-"+call)
			})
		}
		if e := ask(tt.first); e.Code != "" {
			t.Errorf("%s: %+v", call, e)
		}
		if e := ask(tt.first); e.Target != tt.id || e.Code != "" {
			t.Errorf("a replay of %s: %+v", call, e)
		}
		if e := ask(tt.other); e.Target != tt.id || e.Code != "conflict" {
			t.Errorf("%s with the key of another request: %+v", call, e)
		}
	}
}

// A build is a stream: it cannot be repeated by a key, and says so.
func TestStreamsRefuseTheKey(t *testing.T) {
	f := newFixture(t)
	addr, stop := f.serve()
	defer stop()
	for protocol, options := range protocols {
		c := templatev1connect.NewTemplateServiceClient(callClient(t, f.token, protocol), "http://"+addr.String(), options...)
		stream := c.Build(t.Context())
		stream.RequestHeader().Set(idempotent, "k")
		_, err := stream.CloseAndReceive()
		if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "send it without the header") {
			t.Errorf("%s: %v", protocol, err)
		}
	}
}

// Calls that show a secret have it where storing the answer looks for it.
func TestSecretsOfCallsAreFound(t *testing.T) {
	found := 0
	for _, rt := range newFixture(t).server.RouteTable() {
		if !rt.Call || !rt.Op.ShowsSecret {
			continue
		}
		found++
		name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(rt.Path, "/"), "/", "."))
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Fatal(err)
		}
		answer := dynamicpb.NewMessage(d.(protoreflect.MethodDescriptor).Output())
		field := answer.Descriptor().Fields().ByName("secret")
		if field == nil {
			t.Errorf("the answer of %s has no field secret", name)
			continue
		}
		answer.Set(field, protoreflect.ValueOfString("s"))
		if kept := gateway.WithoutSecretField(answer); kept.ProtoReflect().Has(field) || !answer.Has(field) {
			t.Errorf("%s: %v is kept of %v", name, kept, answer)
		}
	}
	if found == 0 {
		t.Error("no call shows a secret")
	}
	gateway.WithoutSecretField(&sandboxv1.CreateResponse{}) // has no such field, and does not panic
}

// A key stands for one request, through whichever door, and a call that failed may be
// sent again. Every protocol knows the header.
func TestIdempotencyOfOneCall(t *testing.T) {
	f := newFixture(t)
	addr, stop := f.serve()
	defer stop()
	create := func(protocol, name, key string) (*connect.Response[sandboxv1.CreateResponse], error) {
		r := connect.NewRequest(&sandboxv1.CreateRequest{Name: name})
		r.Header().Set(idempotent, key)
		return calls(t, "http://"+addr.String(), f.token, protocol).Create(t.Context(), r)
	}
	for protocol := range protocols {
		name := strings.ReplaceAll(protocol, " ", "-")
		if _, err := create(protocol, "A b", name); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: a bad name: %v", protocol, err)
		}
		first, err := create(protocol, name, name)
		if err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		again, err := create(protocol, name, name)
		if err != nil || again.Msg.Sandbox.SandboxId != first.Msg.Sandbox.SandboxId || !again.Msg.Created || again.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: %v, then %v, %v", protocol, first, again, err)
		}
	}
	var first, again view
	f.with("POST", "/api/v1/sessions", `{"name":"rest"}`, "Authorization", "Bearer "+f.token, idempotent, "both").into(t, http.StatusCreated, &first)
	if _, err := create("connect", "rest", "both"); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "another request") {
		t.Errorf("the key of another door: %v", err)
	}
	f.with("POST", "/api/v1/sessions", `{"name":"rest"}`, "Authorization", "Bearer "+f.token, idempotent, "both").into(t, http.StatusCreated, &again)
	if first.SandboxID != again.SandboxID {
		t.Errorf("%+v, then %+v", first, again)
	}
}
