package chaos

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Fault is a fault that a plan chose.
type Fault struct {
	Name   string // of a row of kinds
	Target string // a Machine, or empty
	From   string // of a partition: what the Target cannot reach
	Wait   time.Duration
	Lasts  time.Duration
	Jump   time.Duration // of a clock
	Pick   uint64        // chooses one of several processes
}

func (f Fault) String() string {
	text := f.Name
	if f.Target != "" {
		text += ": " + f.Target
	}
	if f.From != "" {
		text += " from " + f.From
	}
	if f.Jump != 0 {
		text += fmt.Sprintf(" by %v", f.Jump)
	}
	return text
}

// Names of what can fail. Machines have the names of a Fleet; leader and standby are the
// session-manager with that part at the time of the fault.
const (
	leader     = "the leader"
	standby    = "the standby"
	postgreSQL = "PostgreSQL"
	redis      = "Redis"
	s3         = "S3"
	managers   = "the session-managers"
	schedulers = "the schedulers"
	nodes      = "the nodes"
	outside    = "the outside"
)

var (
	gatewayNames   = []string{"gateway-a", "gateway-b"}
	managerNames   = []string{leader, standby}
	schedulerNames = []string{"scheduler", "scheduler-b"}
	nodeNames      = []string{"node-a", "node-b"}
)

const (
	killed = 4 * time.Second // how long what was killed is away, at least
	minute = time.Minute     // how long PostgreSQL, Redis or S3 are away
	while  = 20 * time.Second
	// fenced is longer than a Node waits before it fences itself, and the leader before it
	// takes the Node's Sandboxes over.
	fenced = 30 * time.Second
)

// kind is a kind of fault.
type kind struct {
	name    string
	targets []string
	from    []string // of a partition, one for each target; nil: no partition
	lasts   time.Duration
	loses   losing
}

// losing says whether a fault may lose Boots, so that their Sandboxes go back to a checkpoint.
type losing string

const (
	never losing = "never"
	may   losing = "may"
	// slowly: if the node stays away for so long that the leader declares it lost.
	slowly losing = "slowly"
)

// kinds are all faults. Each is in a plan once before one comes again.
var kinds = []kind{
	{"kill -9 of a gateway", gatewayNames, nil, killed, never},
	{"kill -9 of a session-manager", managerNames, nil, killed, never},
	{"kill -9 of a scheduler", schedulerNames, nil, killed, never},
	{"kill -9 of a node's launcher", nodeNames, nil, killed, slowly},
	{"kill -9 of a node's server", nodeNames, nil, killed, slowly},
	{"kill -9 of a sentry host", nodeNames, nil, killed, never},
	{"kill -9 of a link shard", nodeNames, nil, killed, never},
	{"kill -9 of a sentry", nodeNames, nil, killed, may},
	{"kill -9 of all of a node's processes", nodeNames, nil, fenced, may},
	{"kill -9 of PostgreSQL", nil, nil, killed, never},
	{"PostgreSQL is away", nil, nil, minute, never},
	{"PostgreSQL is silent", nil, nil, minute, never},
	{"Redis is away", nil, nil, minute, never},
	{"S3 is away", nil, nil, minute, never},
	{"partition", gatewayNames, []string{managers, nodes, postgreSQL, redis}, while, never},
	{"partition", managerNames, []string{schedulers, nodes, postgreSQL}, while, never},
	{"partition of a node from all session-managers", nodeNames, []string{managers}, fenced, may},
	{"partition", schedulerNames, []string{nodes, postgreSQL}, while, never},
	{"partition", nodeNames, []string{s3, outside, nodes, leader, standby}, while, never},
	{"partition of a node from everything", nodeNames, nil, fenced, may},
	{"a full disk", []string{"node-b"}, nil, while, never},
	{"a slow disk", []string{"node-b"}, nil, while, never},
	{"a jumping clock", []string{"gateway-a", leader, standby, "scheduler", "node-a", "node-b"}, nil, while, slowly},
	{"a sleeping node", nodeNames, nil, fenced, may},
}

// loses reports whether Boots may be lost by a fault. declared says that the leader has
// declared a node lost meanwhile.
func (f Fault) loses(declared bool) bool {
	for _, k := range kinds {
		if k.name == f.Name {
			return k.loses == may || k.loses == slowly && declared
		}
	}
	return false
}

// source returns the random numbers of one part of a run.
func source(seed uint64, part uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, part)) }

// Plan returns the first n faults of a seed.
func Plan(seed uint64, n int) (plan []Fault) {
	r := source(seed, 0)
	var deck []int
	for len(plan) < n {
		if len(deck) == 0 {
			deck = r.Perm(len(kinds))
		}
		k := kinds[deck[0]]
		deck = deck[1:]
		f := Fault{
			Name: k.name, Pick: r.Uint64(),
			Wait:  3*time.Second + time.Duration(r.IntN(7000))*time.Millisecond,
			Lasts: k.lasts,
		}
		if k.lasts == while || k.lasts == killed {
			f.Lasts = k.lasts/2 + time.Duration(r.Int64N(int64(k.lasts)))
		}
		if len(k.targets) > 0 {
			f.Target = k.targets[r.IntN(len(k.targets))]
		}
		if len(k.from) > 0 {
			f.From = k.from[r.IntN(len(k.from))]
		}
		if k.name == "a jumping clock" {
			// Certificates allow for five minutes.
			f.Jump = time.Duration(30+r.IntN(210)) * time.Second
			if r.IntN(2) == 0 {
				f.Jump = -f.Jump
			}
		}
		plan = append(plan, f)
	}
	return plan
}

// steps are the operations that a client chooses from, with how often it does.
var steps = []struct {
	kind   Kind
	weight int
}{
	{AddMemory, 25},
	{AddFile, 20},
	{ReadMemory, 8},
	{ReadFile, 10},
	{Get, 15},
	{Rename, 6},
	{Take, 5},
	{Pause, 4},
	{Resume, 4},
	{Rollback, 3},
}

// nextStep draws an operation and the time that the client waits before it.
func nextStep(r *rand.Rand) (Kind, time.Duration) {
	sum := 0
	for _, s := range steps {
		sum += s.weight
	}
	at := r.IntN(sum)
	wait := 100*time.Millisecond + time.Duration(r.IntN(700))*time.Millisecond
	for _, s := range steps {
		if at -= s.weight; at < 0 {
			return s.kind, wait
		}
	}
	return Get, wait
}
