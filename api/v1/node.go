package v1

import "github.com/cloud-sandbox/cloud-sandbox"

// Stats are the counts of the caller's tenant, and the pools and readiness of the nodes.
type Stats struct {
	Sandboxes map[sandbox.State]int `json:"sandboxes"`
	Total     int                   `json:"total"`
	Depths    *Depths               `json:"depths,omitempty"` // nil: currently unknown
	Pools     []Pool                `json:"pools"`
	Nodes     []Node                `json:"nodes"`
}

// Depths counts a tenant's sandboxes by activity.
type Depths struct {
	Active int `json:"active"`
	Idle   int `json:"idle"`
	Paused int `json:"paused"`
}

// Pool is a node's pool of boots without an owner yet.
type Pool struct {
	Node     string `json:"node"`
	Template string `json:"template"`
	Shape    Shape  `json:"shape"`
	Idle     int    `json:"idle"`
	Starting int    `json:"starting"`
	Wanted   int    `json:"wanted"`
	Min      int    `json:"min"`
	Max      int    `json:"max"`
	Hits     int64  `json:"hits"`
	Misses   int64  `json:"misses"`
}

// Node reports whether a node accepts new sandboxes, and the reasons if not.
type Node struct {
	Name    string   `json:"name"`
	Engine  string   `json:"engine"`
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

// NodeDetails is a node as the operator sees it.
type NodeDetails struct {
	Node
	Version   string `json:"version,omitempty"`
	Build     string `json:"build,omitempty"`
	Pause     bool   `json:"pause"` // its engine can save memory
	Sandboxes int    `json:"sandboxes"`
	Host      *Host  `json:"host,omitempty"` // nil: not known
	Full      bool   `json:"full"`           // refuses new sandboxes: its host's memory or disk is nearly full
	// WaitSeconds is the expected wait of one more start.
	WaitSeconds float64 `json:"wait_seconds"`
	// Draining: it takes no new sandboxes, and those on it move to other nodes.
	Draining bool `json:"draining"`
	// MoveVolumes says that its volumes leave it too while it drains.
	MoveVolumes bool `json:"move_volumes"`
	// Lost: it does not answer, and its sandboxes start elsewhere: an operator says
	// so, or it has fenced itself.
	Lost bool `json:"lost"`
	// FenceSeconds is how long after the last renewal of its lease it cuts its sandboxes off
	// by itself; zero: it does not.
	FenceSeconds float64 `json:"fence_seconds"`
	Pools        []Pool  `json:"pools"`
	// Records counts the objects of the node in the records of the installation.
	Records NodeRecords `json:"records"`
}

// NodeRecords counts the records of all tenants that name a node.
type NodeRecords struct {
	Running   int `json:"running"`   // sandboxes that have not ended and are not paused
	Paused    int `json:"paused"`    // sandboxes that are paused on the node
	Snapshots int `json:"snapshots"` // kept snapshots
	// UncopiedSnapshots are the kept snapshots without a complete copy in the blob store.
	UncopiedSnapshots int `json:"uncopied_snapshots"`
	Volumes           int `json:"volumes"`
}

// NodeChange changes a node; a nil field stays as it is.
type NodeChange struct {
	Draining *bool `json:"draining,omitempty"`
	// MoveVolumes moves the volumes of a node that drains too, each once no running sandbox
	// mounts it. It needs draining: true.
	MoveVolumes bool  `json:"move_volumes,omitempty"`
	Lost        *bool `json:"lost,omitempty"`
}

// Host is the memory and the disk of a node's host.
type Host struct {
	MemoryMB     int64 `json:"memory_mb"`
	MemoryFreeMB int64 `json:"memory_free_mb"` // reclaimable caches count as free
	DiskMB       int64 `json:"disk_mb"`        // of the disk that sandboxes write to
	DiskFreeMB   int64 `json:"disk_free_mb"`
}

// Nodes are all nodes.
type Nodes struct {
	Nodes []NodeDetails `json:"nodes"`
}
