// Package guest runs a Guest on this machine, with all services that cmd/guest serves
// inside a Boot. It is for tests of code that calls Guests. Programs and files are real
// and not isolated. A Guest treats all processes of its machine as its own, so a test
// process has one Guest at a time.
package guest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/contexts"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/envd"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/events"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/files"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/processes"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// theReaper is the only reaper of the test process, because a process can have only one.
var theReaper = sync.OnceValue(func() *server.Reaper {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	return server.NewReaper()
})

// token is the access token of the E2B services.
const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

// Open returns a client of a Guest that runs as root, whose one user is root and whose
// folder is dir. It skips the test for other users: a Guest runs as root.
func Open(t testing.TB) (c *client.Client, dir string) {
	t.Helper()
	return open(t, func(control http.Handler) http.Handler { return control })
}

// OpenEarlier is Open for a Guest of an earlier version, which serves single files only
// by E2B's protocol.
func OpenEarlier(t testing.TB) (c *client.Client, dir string) {
	t.Helper()
	const service = "/" + guestv1connect.FilesServiceName + "/"
	return open(t, func(control http.Handler) http.Handler {
		earlier := http.NewServeMux() // answers unknown paths as that version did
		earlier.Handle("/", control)
		for _, path := range []string{
			guest.FilesPath, service + "Stat", service + "ListDir", service + "MakeDir", service + "Move", service + "Remove",
		} {
			earlier.HandleFunc(path, http.NotFound)
		}
		return earlier
	})
}

// open is Open with the handler of the control port wrapped.
func open(t testing.TB, wrap func(http.Handler) http.Handler) (c *client.Client, dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guest runs as root")
	}
	dir = t.TempDir()
	accounts := server.Accounts{Etc: fstest.MapFS{"passwd": {Data: []byte("root:x:0:0:root:" + dir + ":/bin/bash\n")}}}
	g := server.New(accounts, theReaper())
	if err := g.Bind(server.Owner{SandboxID: sandbox.NewSandboxID(), BootNumber: 1, User: "root", Cwd: dir, AccessToken: token}, 0, nil); err != nil {
		t.Fatal(err)
	}
	kept := contexts.New(g)
	registry := processes.New(g, kept)
	told := events.New(g)
	mux := http.NewServeMux()
	mux.Handle((&server.Control{Guest: g}).Handler())
	own := files.New(g)
	mux.Handle(own.Handler())
	mux.HandleFunc("GET "+guest.FilesPath, own.Read)
	mux.HandleFunc("PUT "+guest.FilesPath, own.Write)
	mux.HandleFunc("GET "+guest.LogsPath, told.Logs)
	mux.Handle((&contexts.Service{Contexts: kept}).Handler())
	mux.Handle(processes.NewService(registry).Handler())
	addresses := map[uint16]string{}
	for port, h := range map[uint16]http.Handler{sandbox.GuestPort: wrap(mux), sandbox.EnvdPort: envd.New(g)} {
		srv := httptest.NewServer(h)
		t.Cleanup(srv.Close)
		addresses[port] = srv.Listener.Addr().String()
	}
	c = client.New(func(ctx context.Context, port uint16) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addresses[port])
	}, client.WithToken(token))
	t.Cleanup(func() {
		for _, p := range registry.All() {
			p.End()
			<-p.Ended()
		}
		c.Close()
	})
	return c, dir
}
