package session_test

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node/nodetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session/sessiontest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
)

// The Manager passes the suite of its port over the Nodes that its other tests use.
// tests/core runs it over a Node.
func TestSuite(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) sessiontest.World {
		w := newWorld(t)
		t.Cleanup(w.close)
		return sessiontest.World{
			Sandboxes: w.m,
			Remember:  func(sb sandbox.Sandbox, value string) { w.nodes.remember(sb, value) },
			Recall:    func(sb sandbox.Sandbox) string { return w.nodes.recall(sb) },
		}
	})
}

// The Nodes in memory, over which the Manager is tested, pass the suite of their ports.
func TestNodesInMemory(t *testing.T) {
	nodetest.Run(t, func(*testing.T) nodetest.World {
		n := newNodes(local)
		n.setCPU(local, "avx sse")
		of := func(bootID string) sandbox.Sandbox { return sandbox.Sandbox{Boot: sandbox.Boot{ID: bootID}} }
		return nodetest.World{
			Name: local, Image: savedImage, NodeBoots: n, NodeSaves: n, NodeChanges: n, NodeVolumes: n, Replicate: n.copyOut,
			Remember: func(bootID, value string) { n.remember(of(bootID), value) },
			Recall:   func(bootID string) string { return n.recall(of(bootID)) },
			Need:     func(snapshot, feature string) { n.need(local, snapshot, feature) },
		}
	})
}

// The records of Nodes over a Store pass the suite of their port.
func TestNodeRecords(t *testing.T) {
	sessiontest.NodeRecords(t, func(t *testing.T) sessiontest.NodeRecordsWorld {
		store := sqlitetest.Open(t)
		records := session.NodeRecords{Store: store, Home: "home"}
		return sessiontest.NodeRecordsWorld{Store: store, Home: records, Other: records}
	})
}
