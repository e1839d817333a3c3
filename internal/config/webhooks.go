package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// maxWebhooks bounds the receivers.
const maxWebhooks = 4

// parseWebhooks reads URLs separated by commas. An error shows only a URL's position: its
// path may be a secret.
func parseWebhooks(v string) ([]string, error) {
	var out []string
	for text := range strings.SplitSeq(v, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil || u.Hostname() == "" || u.User != nil || u.Fragment != "" ||
			u.Scheme != "https" && !(u.Scheme == "http" && loopback(u.Hostname())) {
			return nil, fmt.Errorf("the URL number %d is not https://HOST/PATH, or http:// to this machine itself", len(out)+1)
		}
		if slices.Contains(out, u.String()) {
			return nil, fmt.Errorf("the URL number %d is listed twice", len(out)+1)
		}
		out = append(out, u.String())
	}
	if len(out) > maxWebhooks {
		return nil, fmt.Errorf("there may be at most %d", maxWebhooks)
	}
	return out, nil
}

// parseEventKinds adds the list of kinds to an error.
func parseEventKinds(v string) ([]sandbox.EventKind, error) {
	kinds, err := sandbox.ParseEventKinds(v)
	if err != nil {
		return nil, fmt.Errorf("%w: name some of %v with commas between, \"sandbox.*\" for all that begin so, or \"*\" for all", err, sandbox.EventKinds())
	}
	return kinds, nil
}

func (c *Config) checkWebhooks() error {
	switch {
	case len(c.Webhooks) > 0 && len(c.WebhookSecret) < MinSecret:
		return fmt.Errorf("CLOUD_SANDBOX_WEBHOOK_SECRET: it signs the events for CLOUD_SANDBOX_WEBHOOKS, so it needs at least %d bytes: make one with `openssl rand -hex 32`", MinSecret)
	case len(c.Webhooks) == 0 && len(c.WebhookSecret) > 0:
		return errors.New("CLOUD_SANDBOX_WEBHOOK_SECRET: it signs the events for CLOUD_SANDBOX_WEBHOOKS, which is not set; set both or neither")
	case len(c.Webhooks) == 0 && c.WebhookEvents != nil:
		return errors.New("CLOUD_SANDBOX_WEBHOOK_EVENTS: it selects the events for CLOUD_SANDBOX_WEBHOOKS, which is not set; set both or neither")
	}
	return nil
}
