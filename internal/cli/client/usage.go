package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
)

// Usage is a row of what was used.
type Usage struct {
	Day              string  `json:"day"`
	SandboxID        string  `json:"sandbox_id"`
	Seconds          float64 `json:"seconds"`
	CPUSeconds       float64 `json:"vcpu_seconds"`
	MemoryGiBSeconds float64 `json:"memory_gib_seconds"`
	DiskGiBSeconds   float64 `json:"disk_gib_seconds"`
	EgressBytes      int64   `json:"egress_bytes"`
	Cost             *struct {
		Currency string  `json:"currency"`
		Total    float64 `json:"total"`
	} `json:"cost"`
	Raw json.RawMessage `json:"-"`
}

// UnmarshalJSON keeps the row as it came too.
func (u *Usage) UnmarshalJSON(raw []byte) error {
	type plain Usage
	u.Raw = append(json.RawMessage(nil), raw...)
	return json.Unmarshal(raw, (*plain)(u))
}

// MarshalJSON gives the text as the server said it.
func (u Usage) MarshalJSON() ([]byte, error) { return u.Raw, nil }

// Usage returns all rows that query asks for, as the API names its parameters.
func (c *Client) Usage(ctx context.Context, query url.Values) ([]Usage, error) {
	var all []Usage
	for {
		var page struct {
			Rows []Usage `json:"rows"`
			Next string  `json:"next_cursor"`
		}
		if err := c.call(ctx, http.MethodGet, "/api/v1/usage", query, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Rows...)
		if page.Next == "" || len(page.Rows) == 0 {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}
