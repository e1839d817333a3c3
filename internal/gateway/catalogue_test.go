package gateway_test

import (
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

// betweenOurs are the packages of services that no client of the gateway calls.
var betweenOurs = []string{"guest", "builder", "node", "rpc", "scheduler", "session"}

// Every URL of every API has a row in the catalogue, and every row has a URL.
func TestEveryCallHasARow(t *testing.T) {
	t.Parallel()
	rows := map[*catalogue.Operation]bool{}
	for _, o := range catalogue.All() {
		rows[o] = true
	}
	bound := map[*catalogue.Operation]bool{}
	served := map[string]bool{}
	for _, rt := range newFixture(t).Server.RouteTable() {
		if !rows[rt.Op] {
			t.Errorf("%s %s has no row", rt.Method, rt.Path)
		}
		bound[rt.Op] = true
		if rt.Call {
			served[rt.Path] = true
		}
	}
	for o := range rows {
		if !bound[o] {
			t.Errorf("%s has a row, and no API has it", o.Name)
		}
	}
	calls := 0
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		name, ours := strings.CutPrefix(string(file.Package()), "cloudsandbox.")
		name, _, _ = strings.Cut(name, ".")
		if !ours || slices.Contains(betweenOurs, name) {
			return true
		}
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				calls++
				if path := "/" + string(service.FullName()) + "/" + string(service.Methods().Get(j).Name()); !served[path] {
					t.Errorf("%s is not served", path)
				}
			}
		}
		return true
	})
	for _, path := range gateway.Procedures() {
		if !served[path] {
			t.Errorf("%s has an operation and is not served", path)
		}
	}
	if calls != len(gateway.Procedures()) {
		t.Errorf("%d calls, but %d with an operation", calls, len(gateway.Procedures()))
	}
}

// The contract of REST and the catalogue say the same, and name the same operations.
func TestContractIsTheCatalogue(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, rt := range newFixture(t).Server.RouteTable() {
		if rt.Call || rt.E2B {
			continue
		}
		served[rt.Method+" "+rt.Path] = true
		item := doc.Paths.Value(rt.Path)
		if item == nil || item.GetOperation(rt.Method) == nil {
			t.Errorf("%s %s is not in the contract", rt.Method, rt.Path)
			continue
		}
		op := item.GetOperation(rt.Method)
		open := op.Security != nil && len(*op.Security) == 0
		scope, _ := op.Extensions["x-scope"].(string)
		bound, bounded := op.Extensions["x-max-body-bytes"].(float64)
		if !bounded && op.RequestBody != nil {
			bound = float64(catalogue.Streamed)
		}
		once := false
		for _, p := range op.Parameters {
			once = once || p.Ref == "#/components/parameters/IdempotencyKey"
		}
		for property, pair := range map[string][2]any{
			"operationId":                  {op.OperationID, rt.Op.Name},
			"security of anyone":           {open, rt.Op.Anyone},
			"x-scope":                      {scope, string(rt.Op.Scope)},
			"requestBody":                  {op.RequestBody != nil, rt.Op.MaxBody != 0},
			"x-max-body-bytes":             {bound, float64(rt.Op.MaxBody)},
			"bound of the route":           {rt.MaxBody, rt.Op.MaxBody},
			"the parameter IdempotencyKey": {once, rt.Op.Idempotent},
			"changes by a GET":             {rt.Method == http.MethodGet && rt.Op.Changes, rt.Op == catalogue.AttachProcess || rt.Op == catalogue.ConnectPort},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s %s: %s: the contract says %v, the catalogue %v", rt.Method, rt.Path, property, pair[0], pair[1])
			}
		}
	}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			if !served[method+" "+path] {
				t.Errorf("%s %s is in the contract only", method, path)
			}
		}
	}
}

// The contract of REST holds the scopes of the other rows.
func TestScopesOfE2BOnly(t *testing.T) {
	t.Parallel()
	want := map[string]sandbox.Scope{
		"latestSandboxMetrics": "read", "sandboxMetrics": "read", "sandboxLogs": "read",
		"requestBuild": "templates", "startBuild": "templates", "buildDockerfile": "templates", "askUpload": "templates", "upload": "templates",
		"changeTemplate": "templates", "deleteTemplateOrSnapshot": "write", "assignTags": "templates", "removeTags": "templates",
		"getSecret": "read", "statVolumeFile": "read", "changeVolumeFile": "write", "removeVolumeFile": "write", "listVolumeFolder": "read",
		"makeVolumeFolder": "write", "readVolumeFile": "read", "writeVolumeFile": "write",
		"readSettings": "read", "listTeams": "read", "teamMetrics": "read",
		"renameKey": "keys", "createAccessToken": "keys", "deleteAccessToken": "keys",
	}
	got := map[string]sandbox.Scope{}
	ours := map[*catalogue.Operation]bool{}
	table := newFixture(t).Server.RouteTable()
	for _, rt := range table {
		ours[rt.Op] = ours[rt.Op] || !rt.E2B
	}
	for _, rt := range table {
		if !ours[rt.Op] {
			got[rt.Op.Name] = rt.Op.Scope
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A body has room for the longest values that it may have, escaped to twice their
// length.
func TestBodiesHaveRoom(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		op     *catalogue.Operation
		values int64
	}{
		{catalogue.Execute, 2 * (execution.MaxCode + execution.MaxStdin)},
		{catalogue.StartProcess, 2 * (execution.MaxCommand + execution.MaxStdin)},
		{catalogue.ReplaceInFiles, 2 * (execution.MaxReplacePattern + execution.MaxReplacement)},
	} {
		if room := tt.op.MaxBody - tt.values; room < 1<<20 {
			t.Errorf("%s: %d bytes are left for the rest", tt.op.Name, room)
		}
	}
	if catalogue.WriteProcessInput.MaxBody != execution.MaxInput {
		t.Errorf("input may have %d bytes, its body %d", execution.MaxInput, catalogue.WriteProcessInput.MaxBody)
	}
}

// An entry of a denied request has the target in its path, for every API.
func TestAuditNamesThePath(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	without := map[sandbox.Scope]string{}
	for _, s := range sandbox.Scopes() {
		without[s] = f.Key("t", sandbox.RoleOperator, slices.DeleteFunc(sandbox.Scopes(), func(o sandbox.Scope) bool { return o == s })...)
	}
	for _, rt := range f.Server.RouteTable() {
		want := ""
		switch has := func(name string) bool { return strings.Contains(rt.Path, "{"+name+"}") }; {
		case has("id") && has("user"):
			want = "i1/users/u1"
		case has("user"):
			want = "u1"
		case has("part"):
			want = "t1/p1"
		case has("template"):
			want = "t1"
		case has("id"):
			want = "i1"
		default:
			continue
		}
		at := rt
		at.Path = strings.NewReplacer("{id}", "i1", "{user}", "u1", "{template}", "t1", "{part}", "p1").Replace(rt.Path)
		if e := f.AuditOf(func() { f.ask(at, without[rt.Op.Scope]) }); e.Target != want || e.Code != "denied" {
			t.Errorf("%s %s is recorded as %+v, not with the target %s", rt.Method, rt.Path, e, want)
		}
	}
}

// A function takes and gives what its row says. Its own type may embed that of the row,
// for a part of the request or the answer that is outside of the JSON.
func TestRowsHaveTheTypesOfTheirFunctions(t *testing.T) {
	t.Parallel()
	is := func(have reflect.Type, row any) bool {
		want := reflect.TypeOf(row)
		if want == nil || have == want {
			return true
		}
		return have.Kind() == reflect.Struct && slices.ContainsFunc(reflect.VisibleFields(have), func(f reflect.StructField) bool {
			return f.Anonymous && f.Type == want
		})
	}
	all := gateway.UnaryTable()
	if len(all) < 60 {
		t.Errorf("only %d operations have a function", len(all))
	}
	for _, u := range all {
		if !is(u.Gives, u.Op.Gives) {
			t.Errorf("%s gives %T by its row, and its function %v", u.Op.Name, u.Op.Gives, u.Gives)
		}
		if !is(u.Takes, u.Op.Takes) {
			t.Errorf("%s takes %T by its row, and its function %v", u.Op.Name, u.Op.Takes, u.Takes)
		}
	}
}
