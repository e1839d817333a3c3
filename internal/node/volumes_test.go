package node_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// volumeEngine has Boots whose volume server is the test.
type volumeEngine struct {
	*fake.Engine
	servers chan net.Conn
}

func (e volumeEngine) Dial(ctx context.Context, id string, port uint16) (net.Conn, error) {
	if port != sandbox.VolumePort {
		return e.Engine.Dial(ctx, id, port)
	}
	ours, theirs := net.Pipe()
	select {
	case e.servers <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// withVolumes runs a test with a Node that connects to volume servers.
func withVolumes(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{})
		w.volumes = make(chan net.Conn)
		defer w.close()
		w.run()
		test(t, w)
	})
}

func (w *world) volume(tenant sandbox.TenantID) sandbox.VolumeBinding {
	w.t.Helper()
	v := sandbox.VolumeSpec{ID: sandbox.NewVolumeID(), Tenant: tenant, MaxBytes: 1 << 20}
	if err := w.node.CreateVolume(w.t.Context(), name, v); err != nil {
		w.t.Fatal(err)
	}
	return sandbox.VolumeBinding{VolumeSpec: v, Path: "/data"}
}

// asks sends the hello of a Boot's volume server and a request about the root of the
// first Volume.
func asks(t *testing.T, conn net.Conn, ids ...string) unix.Errno {
	t.Helper()
	r := bufio.NewReader(conn)
	for _, req := range []volume.Request{
		{Op: volume.OpHello, Size: volume.Version, Data: []byte(strings.Join(ids, " "))},
		{Op: volume.OpGetAttr, Node: volume.RootNode},
	} {
		if _, err := conn.Write(volume.AppendRequest(nil, &req)); err != nil {
			t.Fatal(err)
		}
		a, err := volume.ReadAnswer(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if req.Op != volume.OpHello {
			return a.Err
		}
	}
	return 0
}

// The Node serves a Boot the Volumes of its Binding until the Boot ends, also after broken
// connections and restarts.
func TestVolumes(t *testing.T) {
	withVolumes(t, func(t *testing.T, w *world) {
		v, other := w.volume("t"), w.volume("t")
		req := request("t")
		req.Binding.Volumes = []sandbox.VolumeBinding{v}
		started := w.start(req)
		conn := <-w.volumes
		if err := asks(t, conn, v.ID); err != 0 {
			t.Errorf("its volume: %v", err)
		}
		conn.Close()
		conn = <-w.volumes // it is connected to again
		if err := asks(t, conn, other.ID); err != unix.ESTALE {
			t.Errorf("a volume that it is not bound with: %v", err)
		}
		w.restart()
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection of the node before: %v", err)
		}
		conn = <-w.volumes
		if err := asks(t, conn, v.ID); err != 0 {
			t.Errorf("its volume after a restart: %v", err)
		}
		if err := w.node.Stop(t.Context(), name, started.BootID, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection of a boot that ended: %v", err)
		}
	})
}

// The Node implements VolumeFiles for its own name only.
func TestVolumeFiles(t *testing.T) {
	withVolumes(t, func(t *testing.T, w *world) {
		ctx, v := t.Context(), w.volume("t")
		of := sandbox.VolumeRef{ID: v.ID, Tenant: "t"}
		if _, err := w.node.WriteVolumeFile(ctx, name, of, "/f", sandbox.VolumeFileChange{}, false, strings.NewReader("text")); err != nil {
			t.Fatal(err)
		}
		if _, err := w.node.MakeVolumeFolder(ctx, name, of, "/d", sandbox.VolumeFileChange{}, false); err != nil {
			t.Fatal(err)
		}
		w.restart()
		var text bytes.Buffer
		if err := w.node.ReadVolumeFile(ctx, name, of, "/f", &text); err != nil || text.String() != "text" {
			t.Errorf("the file has %q, %v", text.String(), err)
		}
		files, err := w.node.ListVolumeFolder(ctx, name, of, "/", 1)
		if err != nil || len(files) != 2 || files[0].Path != "/d" || files[1].Path != "/f" {
			t.Errorf("the volume has %+v, %v", files, err)
		}
		if uses, err := w.node.ListVolumes(ctx, name); err != nil || len(uses) != 1 || uses[0].Files != 2 {
			t.Errorf("the node lists %+v, %v", uses, err)
		}
		_, err = w.node.StatVolumeFile(ctx, "elsewhere", of, "/f")
		codetest.Want(t, "a file of another node", err, sandbox.Unavailable)
		codetest.Want(t, "a volume of another node", w.node.CreateVolume(ctx, "elsewhere", v.VolumeSpec), sandbox.Unavailable)
		if err := w.node.RemoveVolumeFile(ctx, name, of, "/f"); err != nil {
			t.Error(err)
		}
		if err := w.node.DeleteVolume(ctx, name, v.ID); err != nil {
			t.Error(err)
		}
		_, err = w.node.StatVolumeFile(ctx, name, of, "/d")
		codetest.Want(t, "a file of a deleted volume", err, sandbox.NotFound)
	})
}
