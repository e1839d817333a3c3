package gateway_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/cloud-sandbox/cloud-sandbox"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1/templatev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

const createCall = "/cloudsandbox.sandbox.v1.SandboxService/Create"

// The same request creates the same Sandbox through REST and through Connect, and is
// refused by both for the same reason.
func TestCreateThroughEveryDoor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	auth := []string{"Authorization", "Bearer " + f.Token, "Content-Type", "application/json"}
	f.Do("POST", "/api/v1/secrets", `{"name":"KEY","value":"v"}`)
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
			a := f.Plain("POST", path, tt.body, auth...)
			if tt.code != "" {
				var rest struct {
					Error struct{ Code, Message string }
				}
				var call struct{ Code, Message string }
				if json.Unmarshal(a.Body, &rest) != nil || json.Unmarshal(a.Body, &call) != nil || a.Status != 400 {
					t.Errorf("%s through %s: %d %s", tt.body, path, a.Status, a.Body)
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
			if err := json.Unmarshal(a.Body, &made); err != nil || a.Status >= 300 {
				t.Fatalf("%s through %s: %d %s", tt.body, path, a.Status, a.Body)
			}
			id := made.ID + made.Sandbox.ID
			if s := f.Sandboxes.Record(id); !tt.want(s) {
				t.Errorf("%s through %s created %+v", tt.body, path, s)
			}
			var view map[string]any
			f.Plain("GET", "/api/v1/sessions/"+id, "", auth...).Into(t, 200, &view)
			var called struct{ Sandbox map[string]any }
			f.Plain("POST", strings.Replace(createCall, "/Create", "/Get", 1), `{"sandbox_id":"`+id+`"}`, auth...).Into(t, 200, &called)
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
	t.Parallel()
	f := newFixture(t)
	f.Do("POST", "/api/v1/secrets", `{"name":"KEY","value":"v"}`)
	f.Do("POST", "/api/v1/sessions", `{"name":"a"}`)
	const update = "sandbox.v1.SandboxService/Update"
	f.Says(update, `{"sandbox_id":"a","ports":{"private":true},"secrets":{"uses":[{"name":"KEY","host":"api.example.com","header":"A"}]}}`, `"private":true`, `"name":"KEY"`)
	f.Says(update, `{"sandbox_id":"a","metadata":{"b":"c"}}`, `"private":true`, `"name":"KEY"`)
	if got := f.Says(update, `{"sandbox_id":"a","ports":{},"secrets":{}}`); strings.Contains(got, "private") || strings.Contains(got, "KEY") {
		t.Errorf("afterwards it is %s", got)
	}
	for _, tt := range []struct{ message, code, words string }{
		{`{"sandbox_id":"a","resources":{"type":"basic"}}`, "failed_precondition", "instance type"},
		{`{"sandbox_id":"a","ports":{"tls":[0]}}`, "invalid_argument", "port"},
		{`{"sandbox_id":"a","secrets":{"uses":[{"name":"a b"}]}}`, "invalid_argument", "name"},
	} {
		if answers, failed := f.Say(f.Token, update, tt.message); failed.Code != tt.code || !strings.Contains(failed.Message, tt.words) {
			t.Errorf("%s: %q, %+v", tt.message, answers, failed)
		}
	}
}

// Every unary call of an operation that a key makes idempotent takes effect once.
func TestIdempotencyByCalls(t *testing.T) {
	f := newFixture(t)
	f.Token = f.MintAs("owner", "owner")
	auth := []string{"Authorization", "Bearer " + f.Token, "Content-Type", "application/json"}
	id := f.WithProcesses()
	var key struct {
		Key struct {
			ID string `json:"key_id"`
		}
	}
	if err := json.Unmarshal([]byte(f.Says("key.v1.KeyService/Create", `{"name":"mine"}`)), &key); err != nil {
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
	for _, rt := range f.Server.RouteTable() {
		name := strings.TrimPrefix(rt.Path, "/cloudsandbox.")
		if !rt.Call || !rt.Op.Idempotent || name == "template.v1.TemplateService/Build" { // a stream
			continue
		}
		body, ok := bodies[name]
		if !ok {
			t.Errorf("no request for %s", name)
			continue
		}
		delete(bodies, name)
		ask := func(body, key string) (a gatewaytest.Answer, got map[string]any) {
			a = f.Plain("POST", rt.Path, body, append(auth, gatewaytest.Idempotent, key)...)
			if err := json.Unmarshal(a.Body, &got); err != nil {
				t.Fatalf("%s: %v: %s", name, err, a.Body)
			}
			return a, got
		}
		first, made := ask(body[0], "k-"+name)
		again, repeated := ask(body[0], "k-"+name)
		if first.Status != 200 || again.Status != 200 || first.Header.Get("Idempotent-Replayed") != "" || again.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: %d %s, then %d %s", name, first.Status, first.Body, again.Status, again.Body)
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
		if a, _ := ask(body[1], "k-"+name); a.Status != 400 || !strings.Contains(string(a.Body), "another request") {
			t.Errorf("%s with another body: %d %s", name, a.Status, a.Body)
		}
		if a, _ := ask(body[0], "a b"); a.Status != 400 || !strings.Contains(string(a.Body), gatewaytest.Idempotent) {
			t.Errorf("%s with a bad key: %d %s", name, a.Status, a.Body)
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
	f.Token = f.MintAs("owner", "owner")
	var key struct {
		Key struct {
			ID string `json:"key_id"`
		}
	}
	if err := json.Unmarshal([]byte(f.Says("key.v1.KeyService/Create", `{"name":"mine"}`)), &key); err != nil {
		t.Fatal(err)
	}
	box := f.WithProcesses()
	for call, tt := range map[string]struct{ field, id, first, other string }{
		"key.v1.KeyService/Rotate":         {"key_id", key.Key.ID, "", `,"overlap_seconds":1`},
		"sandbox.v1.SandboxService/Fork":   {"sandbox_id", box, "", `,"count":2`},
		"context.v1.ContextService/Create": {"sandbox_id", box, `,"language":"python"`, `,"language":"bash"`},
	} {
		ask := func(other string) sandbox.AuditEntry {
			return f.AuditOf(func() {
				f.Plain("POST", "/cloudsandbox."+call, `{"`+tt.field+`":"`+tt.id+`"`+other+`}`,
					"Authorization", "Bearer "+f.Token, "Content-Type", "application/json", gatewaytest.Idempotent, "k-"+call)
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
	t.Parallel()
	f := newFixture(t)
	addr, stop := f.Serve()
	defer stop()
	for protocol, options := range gatewaytest.Protocols {
		c := templatev1connect.NewTemplateServiceClient(gatewaytest.HTTPClient(t, f.Token, protocol), "http://"+addr.String(), options...)
		stream := c.Build(t.Context())
		stream.RequestHeader().Set(gatewaytest.Idempotent, "k")
		_, err := stream.CloseAndReceive()
		if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "send it without the header") {
			t.Errorf("%s: %v", protocol, err)
		}
	}
}

// Calls that show a secret have it where storing the answer looks for it.
func TestSecretsOfCallsAreFound(t *testing.T) {
	t.Parallel()
	found := 0
	for _, rt := range newFixture(t).Server.RouteTable() {
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
	t.Parallel()
	f := newFixture(t)
	addr, stop := f.Serve()
	defer stop()
	create := func(protocol, name, key string) (*connect.Response[sandboxv1.CreateResponse], error) {
		r := connect.NewRequest(&sandboxv1.CreateRequest{Name: name})
		r.Header().Set(gatewaytest.Idempotent, key)
		return gatewaytest.SandboxClient(t, "http://"+addr.String(), f.Token, protocol).Create(t.Context(), r)
	}
	for protocol := range gatewaytest.Protocols {
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
	var first, again gatewaytest.View
	f.With("POST", "/api/v1/sessions", `{"name":"rest"}`, "Authorization", "Bearer "+f.Token, gatewaytest.Idempotent, "both").Into(t, http.StatusCreated, &first)
	if _, err := create("connect", "rest", "both"); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "another request") {
		t.Errorf("the key of another door: %v", err)
	}
	f.With("POST", "/api/v1/sessions", `{"name":"rest"}`, "Authorization", "Bearer "+f.Token, gatewaytest.Idempotent, "both").Into(t, http.StatusCreated, &again)
	if first.SandboxID != again.SandboxID {
		t.Errorf("%+v, then %+v", first, again)
	}
}

// forgetful is a Store that cannot record the outcomes of requests while it fails.
type forgetful struct {
	sandbox.IdempotencyStore
	fails atomic.Bool
}

func (f *forgetful) settles() error {
	if f.fails.Load() {
		return sandbox.Errorf(sandbox.Unavailable, "the database server does not answer")
	}
	return nil
}

func (f *forgetful) FinishIdempotent(ctx context.Context, o sandbox.IdempotencyRecord, e sandbox.AuditEntry, started ...string) (sandbox.AuditMark, error) {
	if err := f.settles(); err != nil {
		return sandbox.AuditMark{}, err
	}
	return f.IdempotencyStore.FinishIdempotent(ctx, o, e, started...)
}

func (f *forgetful) DropIdempotent(ctx context.Context, o sandbox.IdempotencyRecord) error {
	return cmp.Or(f.settles(), f.IdempotencyStore.DropIdempotent(ctx, o))
}

// A request whose outcome was not recorded does not block its key: a repeat runs again for
// the same resource, or as another request if the first one failed.
func TestOutcomeNotRecorded(t *testing.T) {
	t.Parallel()
	var store forgetful
	f := newFixture(t, func(c *gateway.Config) {
		store.IdempotencyStore = c.Store
		c.Store = &store
	})
	send := func(body string) gatewaytest.Answer {
		return f.With("POST", "/api/v1/sessions", body, "Authorization", "Bearer "+f.Token, gatewaytest.Idempotent, "once")
	}
	store.fails.Store(true)
	if a := send(`{"name":"A b"}`); a.Status != http.StatusBadRequest {
		t.Errorf("a bad name: %d %s", a.Status, a.Body)
	}
	if a := send(`{"name":"A b"}`); a.Status != http.StatusBadRequest {
		t.Errorf("a bad name again: %d %s", a.Status, a.Body)
	}
	store.fails.Store(false)
	if a := send(`{"name":"A b"}`); a.Status != http.StatusBadRequest {
		t.Errorf("a bad name, recorded: %d %s", a.Status, a.Body)
	}
	store.fails.Store(true)
	// The database may have lost the sandbox too, so that the answer is no success.
	for range 2 {
		if a := send(`{"name":"web"}`); a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "send it again") {
			t.Errorf("a create whose outcome is not recorded: %d %s", a.Status, a.Body)
		}
	}
	store.fails.Store(false)
	var made, replayed gatewaytest.View
	send(`{"name":"web"}`).Into(t, http.StatusCreated, &made)
	send(`{"name":"web"}`).Into(t, http.StatusCreated, &replayed)
	if made.SandboxID != replayed.SandboxID {
		t.Errorf("the sandboxes are %s and %s", made.SandboxID, replayed.SandboxID)
	}
}

// Sizes on the disk, what a removal gives back, and the quota of both.
func TestTemplateBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var view struct {
		Size     int64 `json:"size_bytes"`
		Stored   int64 `json:"stored_bytes"`
		Versions []struct {
			Stored int64 `json:"stored_bytes"`
		}
		Templates []struct {
			Stored int64 `json:"stored_bytes"`
		}
	}
	f.Do("GET", "/api/v1/templates/base", "").Into(t, 200, &view)
	f.Do("GET", "/api/v1/templates", "").Into(t, 200, &view)
	if view.Size != 5000 || view.Stored != 8192 || view.Versions[0].Stored != 8192 || view.Templates[0].Stored != 8192 {
		t.Errorf("told as %+v", view)
	}
	const service = "template.v1.TemplateService/"
	f.Says(service+"Get", `{"template":"base"}`, `"stored_bytes":"8192"`)
	var gone struct {
		Removed []string
		Freed   int64 `json:"freed_bytes"`
	}
	f.Templates.Put("dev:test", "mine")
	if f.Do("DELETE", "/api/v1/templates/mine", "").Into(t, 200, &gone); len(gone.Removed) != 2 || gone.Freed != 8192 {
		t.Errorf("removed %+v", gone)
	}
	f.Templates.Put("dev:test", "mine")
	f.Says(service+"Remove", `{"template":"mine"}`, `"freed_bytes":"8192"`)

	f.Templates.Stored = 5<<20 + 1
	var quota struct{ Used, Limits map[string]float64 }
	if f.Do("GET", "/api/v1/quota", "").Into(t, 200, &quota); quota.Used["template_mb"] != 6 || quota.Limits["template_mb"] != 0 {
		t.Errorf("the quota is told as %+v", quota)
	}
	operator := f.Key("ops", sandbox.RoleOperator)
	f.With("PUT", "/api/v1/tenants/acme/quota", `{"template_mb":7}`, "X-API-Key", operator).Into(t, 200, &quota)
	if quota.Used["template_mb"] != 6 || quota.Limits["template_mb"] != 7 {
		t.Errorf("set, it is told as %+v", quota)
	}

	f.Templates.Quota.TemplateBytes = 5 << 20
	const says = "the quota of 5 MiB of templates is used up, they have 5 MiB: delete templates or versions first"
	for name, a := range map[string]gatewaytest.Answer{
		"Dockerfile": f.Do("POST", "/api/v1/templates", `{"template":"web","dockerfile":"FROM base\nRUN true\n"}`),
		"REST":       f.Do("POST", "/api/v1/templates", `{"template":"web","source":"debian:bookworm"}`),
		"E2B":        f.E2B(f.Key("t", sandbox.RoleDeveloper), "POST", "/v3/templates", `{"name":"web"}`),
	} {
		if a.Status != 429 || !strings.Contains(string(a.Body), says) || a.Header.Get("Retry-After") != "" {
			t.Errorf("%s: a build beyond the quota: %d %s", name, a.Status, a.Body)
		}
	}
	if _, failed := f.Say(f.Token, service+"Build", `{"recipe":{"template":"web","source":"debian:bookworm"}}`); failed.Code != "resource_exhausted" || failed.Message != says {
		t.Errorf("over Connect: %+v", failed)
	}
	if a := f.SendForm("template", `{"template":"t","source":"tar:"}`, "archive", "bytes of it"); a.Status != 429 || !strings.Contains(string(a.Body), says) {
		t.Errorf("an archive beyond the quota: %d %s", a.Status, a.Body)
	}
	if len(f.Templates.Requests) != 0 {
		t.Errorf("built: %+v", f.Templates.Requests)
	}
}
