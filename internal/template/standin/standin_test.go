package standin

import "testing"

func TestDifference(t *testing.T) {
	bookworm := ParseReport("PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\nID=debian\nPython 3.11.2\nNode.js v22.20.0\n")
	if want := (System{"debian", "12", "bookworm", "3.11.2", "22.20.0"}); bookworm != want {
		t.Fatalf("read %+v, want %+v", bookworm, want)
	}
	for image, want := range map[string]string{
		"debian": "", "debian:latest": "", "debian:12": "", "debian:12.5-slim": "", "debian:bookworm-slim": "", "docker.io/library/debian:bookworm": "",
		"debian:13":                 "debian 12, not debian 13",
		"debian:trixie-slim":        "debian 12, not debian trixie",
		"ubuntu":                    "debian 12, not ubuntu",
		"ubuntu:24.04":              "debian 12, not ubuntu 24.04",
		"ubuntu:noble":              "debian 12, not ubuntu noble",
		"python":                    "",
		"python:3":                  "",
		"python:3.11-slim":          "",
		"python:3.11.9":             "",
		"python:3.11-slim-bookworm": "",
		"python:slim":               "",
		"python:3.1":                "Python 3.11.2, not Python 3.1",
		"python:3.13-slim":          "Python 3.11.2, not Python 3.13",
		"mirror.example.com:5000/library/python:3.13": "Python 3.11.2, not Python 3.13",
		"python:3.11-trixie":                          "debian 12, not debian trixie",
		"python:3.12-alpine3.20":                      "Python 3.11.2, not Python 3.12; debian 12, not alpine 3.20",
		"node:lts":                                    "",
		"node:22":                                     "",
		"node:22.20-slim":                             "",
		"node:20":                                     "Node.js 22.20.0, not Node.js 20",
		"alpine":                                      "debian 12, not alpine",
		"oven/bun:1.2":                                "",
		"python:3.13@sha256:" + "ab":                  "Python 3.11.2, not Python 3.13",
	} {
		if got := Difference(image, bookworm); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
	if got := Difference("python:3.12", System{Distribution: "debian", Python: None}); got != "Python none, not Python 3.12" {
		t.Errorf("without Python: %q", got)
	}
	if got := Difference("ubuntu:24.04", System{}); got != "" {
		t.Errorf("of what is not known: %q", got)
	}
}
