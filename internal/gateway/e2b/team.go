package e2b

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// teamMetricView is the activity of a Tenant's Sandboxes at one time.
type teamMetricView struct {
	Timestamp     string  `json:"timestamp"`
	TimestampUnix int64   `json:"timestampUnix"`
	Concurrent    int     `json:"concurrentSandboxes"`
	StartRate     float64 `json:"sandboxStartRate"` // per second, since the previous point
}

const (
	// teamMemory is how long records of ended Sandboxes are kept, and therefore how far
	// back team metrics reach.
	teamMemory = 7 * 24 * time.Hour
	// maxTeamPoints bounds an answer; leastTeamStep is the time between two points.
	maxTeamPoints = 500
	leastTeamStep = 5 * time.Second
)

// TeamMetrics answers GET /teams/{team}/metrics from the records of the caller's
// Sandboxes.
func (a *API) TeamMetrics(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	from, to, err := teamPeriod(r, who)
	if err != nil {
		return err
	}
	points, err := a.teamPoints(r.Context(), who, from, to)
	if err != nil {
		return err
	}
	return rest.Reply(w, http.StatusOK, points)
}

// TeamMax answers GET /teams/{team}/metrics/max with the maximum of one metric; the
// first of equal points.
func (a *API) TeamMax(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	from, to, err := teamPeriod(r, who, "metric")
	if err != nil {
		return err
	}
	values := map[string]func(teamMetricView) float64{
		"concurrent_sandboxes": func(v teamMetricView) float64 { return float64(v.Concurrent) },
		"sandbox_start_rate":   func(v teamMetricView) float64 { return v.StartRate },
	}
	value, ok := values[r.URL.Query().Get("metric")]
	if !ok {
		return sandbox.Errorf(sandbox.Invalid, "metric must be concurrent_sandboxes or sandbox_start_rate")
	}
	points, err := a.teamPoints(r.Context(), who, from, to)
	if err != nil {
		return err
	}
	most := points[0]
	for _, p := range points[1:] {
		if value(p) > value(most) {
			most = p
		}
	}
	return rest.Reply(w, http.StatusOK, map[string]any{"timestamp": most.Timestamp, "timestampUnix": most.TimestampUnix, "value": value(most)})
}

// teamPeriod is the time range of a query about the caller's own team.
func teamPeriod(r *http.Request, who sandbox.Identity, more ...string) (from, to time.Time, err error) {
	switch team := r.PathValue("team"); {
	case !uuidPattern.MatchString(team):
		return from, to, sandbox.Errorf(sandbox.Invalid, "Invalid team ID")
	case team != uuidOf("team", string(who.Tenant)): // the team may exist or not
		return from, to, sandbox.Errorf(sandbox.Denied, "the team is not yours")
	}
	if from, to, err = period(r, more...); err != nil {
		return from, to, err
	}
	now := time.Now()
	if to.After(now) {
		to = now
	}
	if least := now.Add(-teamMemory); from.Before(least) {
		from = least
	}
	if from.After(to) { // other times have no records
		from = to
	}
	return from, to, nil
}

// teamPoints are the metrics of the Tenant's Sandboxes in a time range, with at least
// one point.
func (a *API) teamPoints(ctx context.Context, who sandbox.Identity, from, to time.Time) ([]teamMetricView, error) {
	all, err := a.allSandboxes(ctx, who, sandbox.ListQuery{States: slices.Concat(running, paused, []sandbox.State{sandbox.Ended})})
	if err != nil {
		return nil, err
	}
	step := max(leastTeamStep, to.Sub(from)/(maxTeamPoints-1)).Truncate(time.Second)
	points := []teamMetricView{}
	for at := from; !at.After(to); at = at.Add(step) {
		points = append(points, teamPoint(all, at, step))
	}
	return points, nil
}

// teamPoint counts the Sandboxes that ran at a time, and the Sandboxes that began in
// the step before. A time in an earlier pause counts as running.
func teamPoint(all []sandbox.Sandbox, at time.Time, step time.Duration) teamMetricView {
	v := teamMetricView{Timestamp: timestamp(at), TimestampUnix: at.Unix()}
	began := 0
	for _, sb := range all {
		switch {
		case sb.CreatedAt.After(at):
			continue
		case sb.CreatedAt.After(at.Add(-step)):
			began++
		}
		over := stateOf(sb) == statePaused && !endOf(sb).After(at) || sb.Ended != nil && !sb.Ended.At.After(at)
		if !over {
			v.Concurrent++
		}
	}
	v.StartRate = float64(began) / step.Seconds()
	return v
}
