// Package redis limits the request rate of each caller and class of requests over several
// gateways, by buckets in one Redis server. While that does not answer in time, each
// gateway decides by buckets of its own.
package redis

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	_ "embed" // take.lua
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// DefaultWait is how long a request waits for Redis at most.
	DefaultWait = 5 * time.Millisecond
	// connectTime bounds connecting, and the first answer of a connection.
	connectTime = time.Second
	// retryTime is the pause between two attempts to reach a server that does not answer.
	retryTime = time.Second
	// idleTime is the pause after which an idle connection is checked.
	idleTime = 10 * time.Second
	// probes is how many answers in time, one after the other, close the breaker.
	probes = 3
	// maxBatch bounds the requests of one round trip, and maxWaiting all that wait.
	maxBatch   = 256
	maxWaiting = 4096
	// prefix begins all keys.
	prefix = "cloud-sandbox:rate:"
)

//go:embed take.lua
var takeSource string

// Config holds the settings of a Limiter. A field whose comment does not say otherwise is
// required.
type Config struct {
	Address ratelimit.Address
	Rules   ratelimit.Rules // as in ratelimit.New
	// Wait is how long a request waits for Redis at most; zero: DefaultWait.
	Wait     time.Duration
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// A Limiter decides by buckets in Redis, or by its own while Redis does not answer. Its
// methods are safe for concurrent use.
//
// One goroutine, Run, owns the connection. It sends the requests that wait in one round
// trip, so no request dials, and each waits for its answer or until its time is over. The
// first failure opens the circuit breaker: requests ask Redis again only when it has
// answered several probes in time.
type Limiter struct {
	rules   ratelimit.Rules
	local   *ratelimit.Limiter
	hash    []byte // key of the callers' hashes
	address ratelimit.Address
	script  *goredis.Script
	wait    time.Duration
	log     *slog.Logger

	open      atomic.Bool // the circuit breaker: requests do not ask Redis
	questions chan *question

	// Only Open uses these, and then Run.
	client *goredis.Client
	logged state

	byRedis, byLocal prometheus.Counter
	reachable        prometheus.Gauge
}

type state int

const (
	unknown state = iota
	serves
	away
)

// A question is a request that waits for Redis.
type question struct {
	key   string
	rule  ratelimit.Rule
	until time.Time     // the request does not wait longer
	reply chan decision // takes one without blocking
}

// A decision is Redis's, or its absence.
type decision struct {
	ratelimit.Decision
	made bool
}

// Open returns a Limiter, and waits about a second at most for Redis. Redis may be away,
// now or later. Run must be called; until then, and after it, each request waits in vain.
func Open(ctx context.Context, c Config) *Limiter {
	logging.Disable() // the library has one logger for the process, and errors are returned
	wait := c.Wait
	if wait == 0 {
		wait = DefaultWait
	}
	l := &Limiter{
		rules: c.Rules, local: ratelimit.New(c.Rules), hash: hashKey(c.Address), address: c.Address, client: goredis.NewClient(options(c.Address)),
		script: goredis.NewScript(takeSource), wait: wait, log: c.Log, questions: make(chan *question, maxWaiting),
	}
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cloud_sandbox_rate_limit_decisions_total",
		Help: "Requests that were counted against a rate limit, by the place of the bucket: redis, or local while Redis did not answer in time.",
	}, []string{"by"})
	l.byRedis, l.byLocal = decisions.WithLabelValues("redis"), decisions.WithLabelValues("local")
	l.reachable = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cloud_sandbox_redis_reachable",
		Help: "Whether Redis answers in time.",
	})
	c.Registry.MustRegister(decisions, l.reachable)
	l.open.Store(true)
	l.settle(l.probe(ctx))
	return l
}

// options returns the settings of a client with one connection, which leaves retries and
// the time of each call to its user.
func options(a ratelimit.Address) *goredis.Options {
	const never, none = -1, -1
	o := &goredis.Options{
		Addr: a.HostPort, Username: a.User, Password: a.Password, DB: a.DB,
		Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		PoolSize: 1, PipelinePoolSize: none, MaxRetries: none, DialerRetries: 1,
		DialTimeout: connectTime, ReadTimeout: connectTime, WriteTimeout: connectTime, PoolTimeout: connectTime, ContextTimeoutEnabled: true,
		ConnMaxIdleTime: never,
	}
	dialer := &net.Dialer{Timeout: connectTime}
	o.Dialer = dialer.DialContext
	if a.TLS {
		host, _, _ := net.SplitHostPort(a.HostPort)
		secure := &tls.Dialer{NetDialer: dialer, Config: &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}}
		o.Dialer = secure.DialContext
	}
	return o
}

// hashKey returns the key of the callers' hashes. All gateways derive the same one: from
// the password, without which a copy of Redis's data does not confirm a guessed address.
func hashKey(a ratelimit.Address) []byte {
	mac := hmac.New(sha256.New, []byte(a.Password))
	mac.Write([]byte("callers of rate limits"))
	return mac.Sum(nil)
}

// key returns the key of a caller's bucket, which does not show the caller.
func (l *Limiter) key(caller string, class ratelimit.Class) string {
	const size = 16 // bytes; no two callers have the same by chance
	mac := hmac.New(sha256.New, l.hash)
	mac.Write([]byte(caller))
	return prefix + string(class) + ":" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:size])
}

// Take takes one request out of a caller's bucket. It waits for Redis for Config.Wait at
// most, and not at all while Redis is known to be away.
func (l *Limiter) Take(caller string, class ratelimit.Class, now time.Time) ratelimit.Decision {
	rule, limited := l.rules[class]
	if !limited {
		return ratelimit.Decision{OK: true}
	}
	if d, made := l.ask(l.key(caller, class), rule); made {
		l.byRedis.Inc()
		if d.OK {
			// So that this bucket is not full when Redis goes away.
			l.local.Take(caller, class, now)
		}
		return d
	}
	l.byLocal.Inc()
	return l.local.Take(caller, class, now)
}

// ask has Redis decide. It reports whether Redis did, in time.
func (l *Limiter) ask(key string, rule ratelimit.Rule) (ratelimit.Decision, bool) {
	if l.open.Load() {
		return ratelimit.Decision{}, false
	}
	q := &question{key: key, rule: rule, until: time.Now().Add(l.wait), reply: make(chan decision, 1)}
	select {
	case l.questions <- q:
	default: // too many wait
		return ratelimit.Decision{}, false
	}
	timer := time.NewTimer(l.wait)
	defer timer.Stop()
	select {
	case d := <-q.reply:
		return d.Decision, d.made
	case <-timer.C:
		return ratelimit.Decision{}, false
	}
}

// Run asks Redis for the requests that wait, until ctx ends.
func (l *Limiter) Run(ctx context.Context) error {
	defer func() {
		l.stop()
		_ = l.client.Close() // nothing is written later
	}()
	for ctx.Err() == nil {
		if l.open.Load() {
			select {
			case <-ctx.Done():
			case <-time.After(retryTime):
				l.settle(l.probe(ctx))
			}
			continue
		}
		if err := l.serve(ctx); ctx.Err() == nil && err != nil {
			l.stop()
			l.log.Debug("asking Redis failed", telemetry.KeyError, err)
			l.settle(l.probe(ctx)) // most often it is back at once
		}
	}
	return ctx.Err()
}

// stop opens the breaker, and lets the requests go that wait.
func (l *Limiter) stop() {
	l.open.Store(true)
	l.reachable.Set(0)
	for {
		select {
		case q := <-l.questions:
			q.reply <- decision{}
		default:
			return
		}
	}
}

// settle closes the breaker after a probe that succeeded. It logs when Redis goes away and
// when it is back, once each.
func (l *Limiter) settle(err error) {
	if errors.Is(err, context.Canceled) {
		return // the process ends
	}
	if err != nil {
		if l.logged != away {
			l.logged = away
			l.log.Warn("Redis does not serve rate limits: each gateway counts requests by itself until it does", "redis", l.address.String(), telemetry.KeyError, err)
		}
		return
	}
	if l.logged != serves {
		l.logged = serves
		l.log.Info("Redis serves rate limits: gateways count requests together", "redis", l.address.String())
	}
	l.reachable.Set(1)
	l.open.Store(false)
}

// probe connects again, gives the script to the server, and runs it a few times in the time
// that a request would wait. The time for the first steps is generous.
func (l *Limiter) probe(ctx context.Context) error {
	// A client remembers that dialling failed, and then refuses to try for a while.
	_ = l.client.Close() // nothing is lost
	l.client = goredis.NewClient(options(l.address))
	slow, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	if err := l.script.Load(slow, l.client).Err(); err != nil {
		return fmt.Errorf("reach Redis: %w", err)
	}
	for range probes {
		if err := l.probeOnce(ctx); err != nil {
			return err
		}
	}
	return nil
}

// probeOnce takes a request out of a bucket of no caller.
func (l *Limiter) probeOnce(ctx context.Context) error {
	q := &question{key: prefix + "probe", rule: ratelimit.Rule{PerSecond: 1000, Burst: 1000}, until: time.Now().Add(l.wait), reply: make(chan decision, 1)}
	return l.decide(ctx, []*question{q})
}

// serve answers requests until ctx ends or Redis fails.
func (l *Limiter) serve(ctx context.Context) error {
	idle := time.NewTicker(idleTime)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-idle.C:
			if err := l.probeOnce(ctx); err != nil {
				return err
			}
		case q := <-l.questions:
			if err := l.decide(ctx, l.batch(q)); err != nil {
				return err
			}
		}
	}
}

// batch returns q and the requests that wait behind it, without those whose time is over:
// they were decided without Redis.
func (l *Limiter) batch(q *question) []*question {
	batch := make([]*question, 0, 8)
	now := time.Now()
	for {
		if now.Before(q.until) {
			batch = append(batch, q)
		}
		if len(batch) == maxBatch {
			return batch
		}
		select {
		case q = <-l.questions:
		default:
			return batch
		}
	}
}

// decide has Redis decide about a batch, in one round trip. After an error all requests of
// the batch without a decision know that.
func (l *Limiter) decide(ctx context.Context, batch []*question) error {
	if len(batch) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.wait)
	defer cancel()
	pipe := l.client.Pipeline()
	cmds := make([]*goredis.Cmd, len(batch))
	for i, q := range batch {
		cmds[i] = pipe.EvalSha(ctx, l.script.Hash(), []string{q.key}, q.rule.PerSecond, q.rule.Burst)
	}
	_, err := pipe.Exec(ctx)
	for i, q := range batch {
		d, oneErr := read(cmds[i], q.rule)
		q.reply <- d
		err = errors.Join(err, oneErr)
	}
	if err != nil {
		return fmt.Errorf("run the script of rate limits in Redis: %w", err)
	}
	return nil
}

// read reads the result of the script.
func read(cmd *goredis.Cmd, rule ratelimit.Rule) (decision, error) {
	result, err := cmd.Slice()
	if err != nil {
		return decision{}, err
	}
	if len(result) == 2 {
		admitted, ok1 := result[0].(int64)
		text, ok2 := result[1].(string)
		level, err := strconv.ParseFloat(text, 64)
		if ok1 && ok2 && err == nil {
			return decision{rule.Decide(admitted == 1, float64(rule.Burst)-level), true}, nil
		}
	}
	return decision{}, errors.New("the result of the script has another form")
}
