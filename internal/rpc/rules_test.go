package rpc

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"

	builderv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/builder/v1"
	nodev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1"
	schedulerv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/scheduler/v1"
	sessionv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1"
)

// mayCall says which roles may make each call: g gateway, m session-manager, s scheduler,
// n node. A capital letter means that the call is for a Tenant. It is the expectation of
// rules, one line each: a new method needs a line here and a row there.
const mayCall = `
cloudsandbox.builder.v1.BuilderService/Admit         GM
cloudsandbox.builder.v1.BuilderService/BuildByID     G
cloudsandbox.builder.v1.BuilderService/Builds        G
cloudsandbox.builder.v1.BuilderService/CancelBuild   G
cloudsandbox.builder.v1.BuilderService/Drop          m
cloudsandbox.builder.v1.BuilderService/Ended         g
cloudsandbox.builder.v1.BuilderService/Find          GMmn
cloudsandbox.builder.v1.BuilderService/HasUpload     G
cloudsandbox.builder.v1.BuilderService/Keep          M
cloudsandbox.builder.v1.BuilderService/List          G
cloudsandbox.builder.v1.BuilderService/MissingImages n
cloudsandbox.builder.v1.BuilderService/Remove        G
cloudsandbox.builder.v1.BuilderService/Reuse         G
cloudsandbox.builder.v1.BuilderService/StoredBytes   G
cloudsandbox.builder.v1.BuilderService/Tag           G
cloudsandbox.builder.v1.BuilderService/Versions      G
cloudsandbox.builder.v1.BuilderService.Build         G
cloudsandbox.builder.v1.BuilderService.BuildLog      G
cloudsandbox.builder.v1.BuilderService.OpenImage     n
cloudsandbox.builder.v1.BuilderService.OpenUpload    G
cloudsandbox.builder.v1.BuilderService.StoreImage    n
cloudsandbox.builder.v1.BuilderService.StoreUpload   G
cloudsandbox.node.v1.NodeService/Boots               m
cloudsandbox.node.v1.NodeService/ChangeVolumeFile    G
cloudsandbox.node.v1.NodeService/CreateVolume        M
cloudsandbox.node.v1.NodeService/DeleteSaved         m
cloudsandbox.node.v1.NodeService/DeleteVolume        m
cloudsandbox.node.v1.NodeService/ListSaved           m
cloudsandbox.node.v1.NodeService/ListVolumeFolder    G
cloudsandbox.node.v1.NodeService/ListVolumes         gm
cloudsandbox.node.v1.NodeService/MakeVolumeFolder    G
cloudsandbox.node.v1.NodeService/NetworkLog          G
cloudsandbox.node.v1.NodeService/RemoveVolumeFile    G
cloudsandbox.node.v1.NodeService/Save                M
cloudsandbox.node.v1.NodeService/SaveFiles           M
cloudsandbox.node.v1.NodeService/FetchSaved          M
cloudsandbox.node.v1.NodeService/Start               M
cloudsandbox.node.v1.NodeService/StatVolumeFile      G
cloudsandbox.node.v1.NodeService/Stats               gms
cloudsandbox.node.v1.NodeService/Stop                m
cloudsandbox.node.v1.NodeService/Thaw                M
cloudsandbox.node.v1.NodeService/Traffic             m
cloudsandbox.node.v1.NodeService/Update              M
cloudsandbox.node.v1.NodeService/Usage               M
cloudsandbox.node.v1.NodeService.Dial                G
cloudsandbox.node.v1.NodeService.ExportSaved         m
cloudsandbox.node.v1.NodeService.ImportSaved         M
cloudsandbox.node.v1.NodeService.ExportBase          m
cloudsandbox.node.v1.NodeService.KeepBase            m
cloudsandbox.node.v1.NodeService.ExportChanges       m
cloudsandbox.node.v1.NodeService.ImportChanges       M
cloudsandbox.node.v1.NodeService.ExportVolume        M
cloudsandbox.node.v1.NodeService.ImportVolume        M
cloudsandbox.node.v1.NodeService.ReadVolumeFile      G
cloudsandbox.node.v1.NodeService.ServeVolumes        n
cloudsandbox.node.v1.NodeService.WriteVolumeFile     G
cloudsandbox.scheduler.v1.SchedulerService/Place     m
cloudsandbox.scheduler.v1.SchedulerService/PlaceElsewhere m
cloudsandbox.session.v1.NodeRecordsService/KeepCopyKey n
cloudsandbox.session.v1.NodeRecordsService/PackScope n
cloudsandbox.session.v1.NodeRecordsService/BeginCopy n
cloudsandbox.session.v1.NodeRecordsService/UsePacks n
cloudsandbox.session.v1.NodeRecordsService/CompleteCopy n
cloudsandbox.session.v1.NodeRecordsService/AbandonCopy n
cloudsandbox.session.v1.NodeRecordsService/FindCopy n
cloudsandbox.session.v1.NodeRecordsService/LeaderOf  n
cloudsandbox.session.v1.NodeRecordsService/NeedsImage n
cloudsandbox.session.v1.NodeRecordsService/OwnerOf   n
cloudsandbox.session.v1.NodeRecordsService/RenewLease n
cloudsandbox.session.v1.NodeRecordsService/SnapshotsOfBuild n
cloudsandbox.session.v1.NodeRecordsService/TemplateBytes n
cloudsandbox.session.v1.NodeRecordsService/VolumeHomes n
cloudsandbox.session.v1.SessionService/BootEnded     n
cloudsandbox.session.v1.SessionService/Counts        G
cloudsandbox.session.v1.SessionService/Create        G
cloudsandbox.session.v1.SessionService/CreateVolume  G
cloudsandbox.session.v1.SessionService/DeleteSnapshot G
cloudsandbox.session.v1.SessionService/DeleteVolume  G
cloudsandbox.session.v1.SessionService/End           G
cloudsandbox.session.v1.SessionService/Ensure        G
cloudsandbox.session.v1.SessionService/Fork          G
cloudsandbox.session.v1.SessionService/Get           G
cloudsandbox.session.v1.SessionService/GetSnapshot   G
cloudsandbox.session.v1.SessionService/GetVolume     G
cloudsandbox.session.v1.SessionService/History       G
cloudsandbox.session.v1.SessionService/Idle          G
cloudsandbox.session.v1.SessionService/List          G
cloudsandbox.session.v1.SessionService/ListSnapshots G
cloudsandbox.session.v1.SessionService/ListVolumes   G
cloudsandbox.session.v1.SessionService/NodeEnded     n
cloudsandbox.session.v1.SessionService/Pause         G
cloudsandbox.session.v1.SessionService/Resume        G
cloudsandbox.session.v1.SessionService/Rollback      G
cloudsandbox.session.v1.SessionService/SecretChanged G
cloudsandbox.session.v1.SessionService/SetTimeout    G
cloudsandbox.session.v1.SessionService/Settled       G
cloudsandbox.session.v1.SessionService/TakeSnapshot  G
cloudsandbox.session.v1.SessionService/Touch         G
cloudsandbox.session.v1.SessionService/Update        G
cloudsandbox.session.v1.SessionService/Used          g
cloudsandbox.session.v1.SessionService.ExportSnapshot G
cloudsandbox.session.v1.SessionService.ImportSnapshot G
`

func expected(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(strings.TrimSpace(mayCall)) {
		procedure, who, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || all["/"+procedure] != "" {
			t.Fatalf("line %q", line)
		}
		all["/"+procedure] = strings.TrimSpace(who)
	}
	return all
}

// served are the roles with their services.
func served() map[Role][]Service {
	return map[Role][]Service{
		Node:           {NodeService(&reachedNodes{}, &reachedNodes{}), TemplateService(&reachedTemplates{}, reachedUploads{})},
		SessionManager: {SessionService(&reachedManager{}), NodeRecordsService(reachedRecords{})},
		Scheduler:      {SchedulerService(placement(func(context.Context) ([]string, error) { return nil, errReached }))},
	}
}

// errReached is the answer of a handler that has accepted its caller.
var errReached = sandbox.Errorf(sandbox.Conflict, "reached")

// reachedNodes and reachedManager fail with errReached, or panic, which a call reports as
// Internal: both mean that the caller was accepted.
type reachedNodes struct{ sandbox.Nodes }

func (reachedNodes) ExportSaved(context.Context, string, string, bool, io.Writer) error {
	return errReached
}

func (reachedNodes) ImportSaved(context.Context, string, sandbox.TenantID, string, string, io.Reader) (sandbox.Saved, error) {
	return sandbox.Saved{}, errReached
}

func (reachedNodes) ExportBase(context.Context, string, string, io.Writer) error { return errReached }

func (reachedNodes) KeepBase(context.Context, string, string, io.Reader) error { return errReached }

func (reachedNodes) ExportChanges(context.Context, string, string, string, io.Writer) error {
	return errReached
}

func (reachedNodes) ImportChanges(context.Context, string, sandbox.TenantID, sandbox.ChangesRequest, io.Reader) (sandbox.Saved, error) {
	return sandbox.Saved{}, errReached
}

func (reachedNodes) ExportVolume(context.Context, string, sandbox.VolumeRef, io.Writer) error {
	return errReached
}

func (reachedNodes) ImportVolume(context.Context, string, sandbox.VolumeSpec, io.Reader) error {
	return errReached
}

func (reachedNodes) ReadVolumeFile(context.Context, string, sandbox.VolumeRef, string, io.Writer) error {
	return errReached
}

func (reachedNodes) WriteVolumeFile(context.Context, string, sandbox.VolumeRef, string, sandbox.VolumeFileChange, bool, io.Reader) (sandbox.VolumeFile, error) {
	return sandbox.VolumeFile{}, errReached
}

func (reachedNodes) ServeVolumes(context.Context, string, sandbox.BootPlace) (func(net.Conn), error) {
	return nil, errReached
}

type reachedManager struct{ Manager }

type reachedRecords struct{ sandbox.NodeRecords }

// reachedTemplates fails in the same way.
type reachedTemplates struct{ Home }

func (reachedTemplates) OpenImage(context.Context, string) (io.ReadCloser, int64, error) {
	return nil, 0, errReached
}

func (reachedTemplates) StoreImage(context.Context, string, int64, io.Reader) error {
	return errReached
}

func (reachedTemplates) Build(context.Context, sandbox.TenantID, sandbox.TemplateRequest, io.Reader) (sandbox.TemplateBuild, error) {
	return sandbox.TemplateBuild{}, errReached
}

func (reachedTemplates) BuildLog(context.Context, sandbox.TenantID, string, int64, bool, func(sandbox.BuildLine) error) error {
	return errReached
}

type reachedUploads struct{ sandbox.TemplateUploads }

func (reachedUploads) OpenUpload(context.Context, sandbox.TenantID, string) (io.ReadCloser, int64, error) {
	return nil, 0, errReached
}

func (reachedUploads) StoreUpload(context.Context, sandbox.TenantID, string, io.Reader) error {
	return errReached
}

func (reachedManager) ExportSnapshot(context.Context, sandbox.TenantID, string, bool, io.Writer) error {
	return errReached
}

func (reachedManager) ImportSnapshot(context.Context, sandbox.TenantID, sandbox.ImportRequest, io.Reader) (sandbox.Snapshot, error) {
	return sandbox.Snapshot{}, errReached
}

// unaries finds the methods of every service between roles, with their requests.
func unaries(t *testing.T) map[string]protoreflect.MessageDescriptor {
	t.Helper()
	all := map[string]protoreflect.MessageDescriptor{}
	for _, file := range []protoreflect.FileDescriptor{
		builderv1.File_cloudsandbox_builder_v1_builder_proto, nodev1.File_cloudsandbox_node_v1_node_proto, schedulerv1.File_cloudsandbox_scheduler_v1_scheduler_proto, sessionv1.File_cloudsandbox_session_v1_session_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				all["/"+string(service.FullName())+"/"+string(m.Name())] = m.Input()
			}
		}
	}
	return all
}

// filled is a request for the Tenant "t" at the Node "n", as JSON.
func filled(t *testing.T, d protoreflect.MessageDescriptor) string {
	t.Helper()
	m := dynamicpb.NewMessage(d)
	fillRequest(m, 0)
	raw, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func fillRequest(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList() || f.IsMap():
		case f.Kind() == protoreflect.StringKind && f.Name() == "tenant":
			m.Set(f, protoreflect.ValueOfString("t"))
		case f.Kind() == protoreflect.StringKind && f.Name() == "node":
			m.Set(f, protoreflect.ValueOfString("n"))
		case f.Kind() == protoreflect.MessageKind && depth == 0 && f.Message().ParentFile().Package() == m.Descriptor().ParentFile().Package():
			fillRequest(m.Mutable(f).Message(), depth+1)
		}
	}
}

// Every call, by every role, for a Tenant and for none: exactly the expected ones reach
// their handler, over TLS and on a socket.
func TestEveryCallByEveryRole(t *testing.T) {
	p := newPKI(t)
	want := expected(t)
	requests := unaries(t)
	for procedure := range requests {
		if want[procedure] == "" {
			t.Errorf("%s has no line in mayCall: decide which roles may call it, and add it to rules", procedure)
		}
	}
	tried := 0
	for role, services := range served() {
		s := p.secured(t, role, "n", services...)
		var patterns []string
		for _, service := range services {
			patterns = slices.AppendSeq(patterns, maps.Keys(service.carried))
			if service.nodes != nil {
				patterns = append(patterns, "GET "+dialPath)
			}
			if service.homes != nil {
				patterns = append(patterns, "GET "+volumesPath)
			}
			for procedure := range requests {
				if strings.HasPrefix(procedure, "/"+service.Name+"/") {
					patterns = append(patterns, "POST "+procedure)
				}
			}
		}
		for _, by := range []Role{Gateway, SessionManager, Scheduler, Node, "authority"} {
			caller := caller(t, p, by)
			for _, pattern := range patterns {
				method, procedure, _ := strings.Cut(pattern, " ")
				for _, tenant := range []sandbox.TenantID{"", "t"} {
					allowed := allows(want[procedure], by, tenant)
					for _, transport := range []string{"tls", "unix"} {
						body := "{}"
						if d := requests[procedure]; d != nil {
							body = filled(t, d)
						}
						if got := caller.reaches(t, s, transport, method, procedure, tenant, body); got != allowed {
							t.Errorf("%s by a %s for tenant %q over %s reaches its handler: %v", procedure, by, tenant, transport, got)
						}
						tried++
					}
				}
			}
		}
		for _, pattern := range patterns {
			_, procedure, _ := strings.Cut(pattern, " ")
			delete(want, procedure)
		}
	}
	if tried < 1000 {
		t.Errorf("only %d calls were tried", tried)
	}
	if len(want) > 0 {
		t.Errorf("mayCall has lines of no call: %v", want)
	}
	for procedure := range rules {
		if _, known := expected(t)[procedure]; !known {
			t.Errorf("rules has a row of no call: %s", procedure)
		}
	}
}

// allows reads a line of mayCall.
func allows(who string, by Role, tenant sandbox.TenantID) bool {
	letter := map[Role]string{Gateway: "g", SessionManager: "m", Scheduler: "s", Node: "n"}[by]
	if tenant != "" {
		letter = strings.ToUpper(letter)
	}
	return letter != "" && strings.Contains(who, letter)
}

// testCaller makes any call as one role.
type testCaller struct {
	role     Role
	identity *cluster.Identity
}

func caller(t *testing.T, p pki, role Role) testCaller {
	t.Helper()
	return testCaller{role, p.identity(t, role, "x")}
}

// reaches reports whether a call was accepted. A refusal must be Denied.
func (c testCaller) reaches(t *testing.T, s *server, transport, method, procedure string, tenant sandbox.TenantID, body string) bool {
	t.Helper()
	address := s.unix
	if transport == "tls" {
		address = s.tcp
	}
	self := s.by(c.identity)
	peer := newPeer(s.role, "n", address, self)
	defer peer.close()
	req, err := http.NewRequestWithContext(t.Context(), method, peer.base+procedure, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	ctx, err := peer.sign(t.Context(), req.Header, tenant)
	if err != nil {
		t.Fatal(err)
	}
	res, err := peer.http.Do(req.WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	return !strings.Contains(text, "permission_denied") && !strings.Contains(text, `"denied"`)
}

// A procedure without a rule is refused.
func TestNoRule(t *testing.T) {
	for _, role := range []Role{Gateway, SessionManager, Scheduler, Node} {
		if err := authorize("/cloudsandbox.node.v1.NodeService/New", Caller{Role: role}); sandbox.CodeOf(err) != sandbox.Denied {
			t.Errorf("%s: %v", role, err)
		}
	}
}
