package config

import (
	"os"
	"strings"
	"testing"
)

func TestUpstreamProxy(t *testing.T) {
	const proxy = "http://ann:p%40ss@proxy.example"
	c, err := Load(map[string]string{"dev": "true"}, env(upstreamProxy, proxy))
	if err != nil || c.UpstreamProxy != proxy {
		t.Errorf("%q, %v", c.UpstreamProxy, err)
	}
	for _, wrong := range []string{"https://ann:hush@proxy.example", "http://ann:hush@proxy.example:none", "ann:hush@proxy.example"} {
		if _, err := Load(map[string]string{"dev": "true"}, env(upstreamProxy, wrong)); err == nil ||
			!strings.Contains(err.Error(), upstreamProxy+": ") || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

func TestExportProxy(t *testing.T) {
	const proxy, url = "http://ann:p%40ss@proxy.example", "http://ann:p%40ss@proxy.example:3128"
	for name, tt := range map[string]struct {
		set         map[string]string
		http, https string
		is          string // the proxy; empty: none
	}{
		"nothing":       {nil, "", "", ""},
		"another alone": {map[string]string{"https_proxy": "http://other:1"}, "", "http://other:1", ""},
		"it alone":      {map[string]string{upstreamProxy: proxy}, url, url, "proxy.example:3128"},
		"it and one":    {map[string]string{upstreamProxy: proxy, "http_proxy": "http://other:1"}, "http://other:1", url, "proxy.example:3128"},
		"in capitals":   {map[string]string{upstreamProxy: proxy, "HTTPS_PROXY": "http://other:1"}, url, "", "proxy.example:3128"},
	} {
		for _, variable := range []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", upstreamProxy} {
			t.Setenv(variable, tt.set[variable])
		}
		got, err := ExportProxy(os.Getenv)
		is := ""
		if got != nil {
			is = got.String()
		}
		if err != nil || is != tt.is || os.Getenv("http_proxy") != tt.http || os.Getenv("https_proxy") != tt.https {
			t.Errorf("%s: %q, %v, http_proxy=%s https_proxy=%s", name, is, err, os.Getenv("http_proxy"), os.Getenv("https_proxy"))
		}
	}
	t.Setenv(upstreamProxy, "https://ann:hush@proxy.example")
	if _, err := ExportProxy(os.Getenv); err == nil || !strings.Contains(err.Error(), upstreamProxy) || strings.Contains(err.Error(), "hush") {
		t.Errorf("one that is not supported: %v", err)
	}
}
