package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// upstreamProxy is the variable that Config.UpstreamProxy is set by.
const upstreamProxy = "CLOUD_SANDBOX_UPSTREAM_PROXY"

// ExportProxy returns the upstream proxy, by the same rules as Load, and names it to
// this process and the programs that it starts (apt, npm, debootstrap) as
// http_proxy and https_proxy, where the operator has not set these. nil: there is
// none. http.ProxyFromEnvironment may have read them before; what builds reads them at
// each request.
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
