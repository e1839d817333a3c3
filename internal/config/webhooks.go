package config

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// maxWebhooks is how many receivers there may be.
const maxWebhooks = 4

// parseWebhooks reads URLs with commas between. It shows of a wrong one only its
// place: what is behind a host may be a secret.
func parseWebhooks(v string) ([]string, error) {
	var out []string
	for text := range strings.SplitSeq(v, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil || u.Hostname() == "" || u.User != nil || u.Fragment != "" ||
			u.Scheme != "https" && !(u.Scheme == "http" && loopback(u.Hostname())) {
			return nil, fmt.Errorf("the URL number %d is not https://HOST/PATH, or http:// to this machine itself", len(out)+1)
		}
		out = append(out, u.String())
	}
	if len(out) > maxWebhooks {
		return nil, fmt.Errorf("there may be at most %d", maxWebhooks)
	}
	return out, nil
}

func (c *Config) checkWebhooks() error {
	switch {
	case len(c.Webhooks) > 0 && len(c.WebhookSecret) < MinSecret:
		return fmt.Errorf("CLOUD_SANDBOX_WEBHOOK_SECRET: what is sent to CLOUD_SANDBOX_WEBHOOKS is signed with it, so it needs at least %d bytes: make one with `openssl rand -hex 32`", MinSecret)
	case len(c.Webhooks) == 0 && len(c.WebhookSecret) > 0:
		return errors.New("CLOUD_SANDBOX_WEBHOOK_SECRET: it signs what is sent to CLOUD_SANDBOX_WEBHOOKS, which is not set; set both or neither")
	}
	return nil
}
