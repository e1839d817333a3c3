package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// Load returns the current resource use of the Sandbox. See execution.Guest.
func (c *Client) Load(ctx context.Context) (execution.Load, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url(sandbox.EnvdPort)+"/metrics", nil)
	if err != nil {
		return execution.Load{}, err
	}
	if c.token != "" {
		req.Header.Set("X-Access-Token", c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return execution.Load{}, fail(ctx, err)
	}
	defer resp.Body.Close()
	var m struct {
		CPUs        int     `json:"cpu_count"`
		CPUPercent  float64 `json:"cpu_used_pct"`
		MemoryAll   int64   `json:"mem_total"`
		MemoryUsed  int64   `json:"mem_used"`
		MemoryCache int64   `json:"mem_cache"`
		DiskUsed    int64   `json:"disk_used"`
		DiskAll     int64   `json:"disk_total"`
	}
	const maxBody = 4 << 10
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&m); err != nil || resp.StatusCode != http.StatusOK {
		return execution.Load{}, away(err)
	}
	return execution.Load{
		At: time.Now(), CPUs: min(max(m.CPUs, 0), maxCPUs), CPUPercent: min(max(m.CPUPercent, 0), 100*maxCPUs),
		MemoryUsed: max(m.MemoryUsed, 0), MemoryAll: max(m.MemoryAll, 0), MemoryCache: max(m.MemoryCache, 0),
		DiskUsed: max(m.DiskUsed, 0), DiskAll: max(m.DiskAll, 0),
	}, nil
}

// maxCPUs bounds the number of processors that a Guest may report.
const maxCPUs = 1 << 10
