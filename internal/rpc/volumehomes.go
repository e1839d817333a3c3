package rpc

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// volumesPath asks a Node to serve a Boot of the calling Node the Volumes that it stores,
// as an upgrade like a dial.
const volumesPath = "/cloudsandbox.node.v1.NodeService.ServeVolumes"

// VolumeHomes connects a Node to the Nodes that store Volumes. Use NewVolumeHomes.
type VolumeHomes struct{ peers peers }

// volumesUnheard bounds how long requests to a Volume may stay unacknowledged by the other
// kernel. Without it a connection to a Node that lost power lasts up to a quarter of an hour:
// keep-alive probes are not sent while data is on its way.
const volumesUnheard = 30 * time.Second

// NewVolumeHomes returns the connections of the Node self.
func NewVolumeHomes(self Self) *VolumeHomes {
	self.unheard = volumesUnheard
	return &VolumeHomes{newPeers(self)}
}

// Close frees idle connections.
func (h *VolumeHomes) Close() { h.peers.close() }

// DialVolumes connects to the volume server for a Boot of this Node on the Node that
// stores a Volume. The errors of sandbox.VolumeHomes apply; a silent Node is
// Unavailable.
func (h *VolumeHomes) DialVolumes(ctx context.Context, at sandbox.VolumeHome, to sandbox.BootPlace) (net.Conn, error) {
	if CheckAddress(at.Address) != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "no node %.64q", at.Node)
	}
	return h.peers.at(at.Node, at.Address).stream(ctx, streamRequest{path: volumesPath, query: url.Values{
		"node": {at.Node}, "sandbox": {to.SandboxID}, "number": {strconv.FormatInt(to.Number, 10)},
	}})
}

// volumeStreams serves the Volumes of a Node to Boots on other Nodes.
type volumeStreams struct {
	*dials
	homes sandbox.VolumeHomes
}

func (v *volumeStreams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serve, err := v.admit(r)
	if err != nil {
		refuse(w, err)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, sandbox.Errorf(sandbox.Invalid, "a stream needs an HTTP/1.1 connection").WithCause(err))
		return
	}
	defer conn.Close()
	if conn.SetDeadline(time.Time{}) != nil || !v.begin(callerCertificate(r), conn) {
		return
	}
	defer v.finish(conn)
	if _, err := conn.Write(switching(upgradeBytes)); err == nil {
		serve(&stream{Conn: conn, head: buffered.Reader})
	}
}

// admit authenticates the Node that calls, whose Boot the stream is for.
func (v *volumeStreams) admit(r *http.Request) (func(net.Conn), error) {
	c, err := v.caller(r.Context(), volumesPath, r.Header)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	number, err := strconv.ParseInt(q.Get("number"), 10, 64)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the call names no boot").WithCause(err)
	}
	ctx, cancel := context.WithTimeout(forRequest(r.Context(), r.Header), dialLimit)
	defer cancel()
	return v.homes.ServeVolumes(ctx, q.Get("node"), sandbox.BootPlace{SandboxID: q.Get("sandbox"), Number: number, Node: c.Name})
}
