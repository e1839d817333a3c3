package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLoadClient(t *testing.T) {
	for _, tt := range []struct {
		name  string
		flags map[string]string
		env   map[string]string
		want  Client
		err   string
	}{
		{"nothing", nil, nil, Client{URL: DefaultURL, UserID: DefaultUserID}, ""},
		{
			"environment", nil,
			map[string]string{"CLOUD_SANDBOX_URL": "https://x.example/", "CLOUD_SANDBOX_API_KEY": "k"},
			Client{URL: "https://x.example", Key: "k", UserID: DefaultUserID},
			"",
		},
		{
			"flags are stronger",
			map[string]string{"url": "http://a:1", "api-key": "f", "user-id": "u"},
			map[string]string{"CLOUD_SANDBOX_URL": "http://b:2", "CLOUD_SANDBOX_API_KEY": "k", "CLOUD_SANDBOX_USER_ID": "v"},
			Client{URL: "http://a:1", Key: "f", UserID: "u", ByUser: true},
			"",
		},
		{
			"a user is stronger than the environment's key",
			map[string]string{"user-id": "u"},
			map[string]string{"CLOUD_SANDBOX_API_KEY": "k"},
			Client{URL: DefaultURL, UserID: "u", ByUser: true},
			"",
		},
		{"a path", map[string]string{"url": "http://127.0.0.1:1/base/"}, nil, Client{URL: "http://127.0.0.1:1/base", UserID: "test"}, ""},
		{"IPv6", map[string]string{"url": "http://[::1]:80"}, nil, Client{URL: "http://[::1]:80", UserID: "test"}, ""},
		{"no key far away", map[string]string{"url": "http://10.0.0.1"}, nil, Client{}, "CLOUD_SANDBOX_API_KEY"},
		{"no scheme", map[string]string{"url": "localhost:8080"}, nil, Client{}, "http://HOST:PORT"},
		{"other scheme", map[string]string{"url": "ftp://localhost"}, nil, Client{}, "http://HOST:PORT"},
		{"password", map[string]string{"url": "http://a:b@localhost"}, nil, Client{}, "password"},
		{"query", map[string]string{"url": "http://localhost/?a=b"}, nil, Client{}, "?"},
		{"a key with a line break", nil, map[string]string{"CLOUD_SANDBOX_API_KEY": "k\n"}, Client{}, "API key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nowhere := t.TempDir()
			got, err := LoadClient(tt.flags, func(k string) string {
				if k == "CLOUD_SANDBOX_DATA" {
					return nowhere
				}
				return tt.env[k]
			})
			if err == nil {
				err = got.CheckKey()
			}
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("the error is %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func TestCheckPrivate(t *testing.T) {
	for url, private := range map[string]bool{
		"http://localhost:8080": true, "http://127.0.0.1": true, "http://127.9.9.9:1": true, "http://[::1]:80": true, "http://LOCALHOST": true,
		"https://box.example.com": true, "https://10.0.0.1:8443": true, "HTTPS://10.0.0.1": true,
		"http://box.example.com": false, "http://10.0.0.1:8080": false, "http://0.0.0.0": false, "http://[fe80::1]": false,
		"http://127.0.0.1.example.com": false, "http://localhost.example.com": false, "http://2130706433": false,
	} {
		c, err := LoadClient(map[string]string{"url": url}, func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		if err := c.CheckPrivate(); (err == nil) != private {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// A server says where it is; flags and the environment know better.
func TestLoadClientTold(t *testing.T) {
	data := t.TempDir()
	if err := os.MkdirAll(filepath.Dir(AddressFile(data)), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(AddressFile(data), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	release := serve(t, data)
	load := func(url string) (Client, error) {
		env := map[string]string{"CLOUD_SANDBOX_URL": url}
		return LoadClient(map[string]string{"data": data}, func(k string) string { return env[k] })
	}
	write("http://127.0.0.1:8117\n")
	if got, err := load(""); err != nil || got.URL != "http://127.0.0.1:8117" {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := load("http://localhost:1"); err == nil || !strings.Contains(err.Error(), "--data and CLOUD_SANDBOX_URL") {
		t.Errorf("a folder and a server of the environment: %v", err)
	}
	nothing := func(string) string { return "" }
	if _, err := LoadClient(map[string]string{"data": data, "url": "http://localhost:1"}, nothing); err == nil || !strings.Contains(err.Error(), "--data and --url") {
		t.Errorf("a folder and a server: %v", err)
	}
	if _, err := LoadClient(map[string]string{"data": t.TempDir()}, nothing); err == nil || !strings.Contains(err.Error(), "no server runs with the data folder") {
		t.Errorf("a folder without a server: %v", err)
	}
	for url, want := range map[string]string{"": "http://127.0.0.1:8117", "http://localhost:1": "http://localhost:1"} { // the environment's folder gives way
		env := map[string]string{"CLOUD_SANDBOX_URL": url, "CLOUD_SANDBOX_DATA": data}
		if got, err := LoadClient(nil, func(k string) string { return env[k] }); err != nil || got.URL != want {
			t.Errorf("got %+v, %v, want %s", got, err, want)
		}
	}
	write("nonsense")
	if _, err := load(""); err == nil {
		t.Error("nonsense is taken for an address")
	}
	write("http://127.0.0.1:8117\n")
	release()
	if _, err := load(""); err == nil || !strings.Contains(err.Error(), "no server runs with the data folder") {
		t.Errorf("the address of a server that was killed is used: %v", err)
	}
	env := map[string]string{"CLOUD_SANDBOX_DATA": data}
	if got, err := LoadClient(nil, func(k string) string { return env[k] }); err != nil || got.URL != DefaultURL {
		t.Errorf("the address of a server that was killed: %+v, %v", got, err)
	}
}

// serve holds the lock of a data folder as a server does, until release is called.
func serve(t *testing.T, data string) (release func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(data, LockFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil { // as roles do
		t.Fatal(err)
	}
	return func() { f.Close() }
}
