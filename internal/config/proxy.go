package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// upstreamProxy is the variable of Config.UpstreamProxy.
const upstreamProxy = "CLOUD_SANDBOX_UPSTREAM_PROXY"

// ExportProxy returns the upstream proxy, by the same rules as Load; nil: none. It also
// exports it to this process and its children (apt, npm, debootstrap) as http_proxy and
// https_proxy, unless the operator has set these. http.ProxyFromEnvironment may have
// cached these variables before; the requests of builds read their current values.
func ExportProxy(getenv func(string) string) (*upstream.Proxy, error) {
	text := getenv(upstreamProxy)
	if text == "" {
		return nil, nil
	}
	proxy, err := upstream.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", upstreamProxy, err)
	}
	for _, name := range []string{"http_proxy", "https_proxy"} {
		if getenv(name) != "" || getenv(strings.ToUpper(name)) != "" {
			continue
		}
		if err := os.Setenv(name, proxy.URL()); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	return proxy, nil
}
