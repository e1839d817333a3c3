// Command clients packs the command line alone for pip and npm: "clients --programs DIR
// --version VERSION --time SECONDS --license FILE --out DIR". DIR has the programs that
// `make clients` made. Each system gets a wheel for pip and a package for npm. A
// further npm package runs the program of the system that it is installed on. Equal inputs give equal files.
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

//go:embed launcher.js
var launcher []byte

// system is one that the command line is built for.
type system struct {
	name    string   // as `make clients` names its program
	tags    []string // of wheels
	os, cpu string   // of npm
}

// systems are the systems of `make clients`. The programs are static on Linux; the
// oldest macOS is the oldest that Go supports.
var systems = []system{
	{"linux-amd64", []string{"manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"}, "linux", "x64"},
	{"linux-arm64", []string{"manylinux_2_17_aarch64", "manylinux2014_aarch64", "musllinux_1_1_aarch64"}, "linux", "arm64"},
	{"darwin-amd64", []string{"macosx_12_0_x86_64"}, "darwin", "x64"},
	{"darwin-arm64", []string{"macosx_12_0_arm64"}, "darwin", "arm64"},
	{"windows-amd64", []string{"win_amd64"}, "win32", "x64"},
	{"windows-arm64", []string{"win_arm64"}, "win32", "arm64"},
}

const (
	packageName = "cloud-sandbox-cli"
	summary     = "The command line of Cloud Sandbox, which runs untrusted code strongly isolated"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

// release holds the values that all packages share.
type release struct {
	version string // of the release
	made    time.Time
	license []byte
	out     string
}

func run(args []string) error {
	fs := flag.NewFlagSet("clients", flag.ContinueOnError)
	programs := fs.String("programs", "", "folder of the programs")
	version := fs.String("version", "", "version of the release")
	seconds := fs.Int64("time", 0, "time of the release, in seconds since 1970")
	license := fs.String("license", "", "the licence")
	out := fs.String("out", "", "folder to write to")
	if err := fs.Parse(args); err != nil {
		return err
	}
	text, err := os.ReadFile(*license)
	if err != nil {
		return err
	}
	// Archives of zip begin in 1980.
	made := time.Unix(max(*seconds, 315532800), 0).UTC()
	r := release{*version, made, text, *out}
	var packed []system
	for _, s := range systems {
		program, err := os.ReadFile(filepath.Join(*programs, "cloud-sandbox-"+s.name+s.suffix()))
		if errors.Is(err, os.ErrNotExist) {
			continue // it was not asked for
		}
		if err == nil {
			err = errors.Join(r.wheel(s, program), r.npm(s, program))
		}
		if err != nil {
			return fmt.Errorf("pack %s: %w", s.name, err)
		}
		packed = append(packed, s)
	}
	if len(packed) == 0 {
		return fmt.Errorf("no program in %q: run `make clients` first", *programs)
	}
	return r.npmLauncher(packed)
}

func (s system) suffix() string {
	if s.os == "win32" {
		return ".exe"
	}
	return ""
}

var numbered = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)$`)

// pythonVersion is the version as PEP 440 has it. A build between two releases has a
// development version with its time.
func (r release) pythonVersion() string {
	if m := numbered.FindStringSubmatch(r.version); m != nil {
		return m[1]
	}
	return "0.0.0.dev" + r.made.Format("200601021504")
}

// npmVersion is the same as semantic versions are written.
func (r release) npmVersion() string {
	if m := numbered.FindStringSubmatch(r.version); m != nil {
		return m[1]
	}
	return "0.0.0-dev." + r.made.Format("200601021504")
}

// file is one of an archive.
type file struct {
	name    string
	content []byte
	run     bool // it is a program
}

func (f file) mode() int64 {
	if f.run {
		return 0o755
	}
	return 0o644
}

// wheel writes a wheel whose installation puts the program beside Python's own.
func (r release) wheel(s system, program []byte) error {
	version := r.pythonVersion()
	dist := strings.ReplaceAll(packageName, "-", "_") + "-" + version
	var tags strings.Builder
	for _, tag := range s.tags {
		fmt.Fprintf(&tags, "Tag: py3-none-%s\n", tag)
	}
	files := []file{
		{dist + ".data/scripts/cloud-sandbox" + s.suffix(), program, true},
		{dist + ".dist-info/METADATA", fmt.Appendf(nil, "Metadata-Version: 2.4\nName: %s\nVersion: %s\nSummary: %s\nLicense-Expression: MIT\nLicense-File: LICENSE\nRequires-Python: >=3.8\n", packageName, version, summary), false},
		{dist + ".dist-info/WHEEL", []byte("Wheel-Version: 1.0\nGenerator: cloud-sandbox\nRoot-Is-Purelib: false\n" + tags.String()), false},
		{dist + ".dist-info/licenses/LICENSE", r.license, false},
	}
	var record strings.Builder
	for _, f := range files {
		sum := sha256.Sum256(f.content)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.content))
	}
	fmt.Fprintf(&record, "%s.dist-info/RECORD,,\n", dist)
	files = append(files, file{dist + ".dist-info/RECORD", []byte(record.String()), false})

	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: r.made}
		h.SetMode(os.FileMode(f.mode()))
		w, err := z.CreateHeader(h)
		if err == nil {
			_, err = w.Write(f.content)
		}
		if err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, dist+"-py3-none-"+strings.Join(s.tags, ".")+".whl"), out.Bytes(), 0o644)
}

// npm writes the package of one system.
func (r release) npm(s system, program []byte) error {
	name := packageName + "-" + s.os + "-" + s.cpu
	return r.npmPackage(name, map[string]any{
		"description": summary + ": the program for " + s.os + " on " + s.cpu,
		"os":          []string{s.os}, "cpu": []string{s.cpu}, "preferUnplugged": true,
	}, file{"bin/cloud-sandbox" + s.suffix(), program, true})
}

// npmLauncher writes the package whose optional dependencies are the packages of all
// systems. npm installs only the package that fits.
func (r release) npmLauncher(packed []system) error {
	optional := map[string]string{}
	for _, s := range packed {
		optional[packageName+"-"+s.os+"-"+s.cpu] = r.npmVersion()
	}
	return r.npmPackage(packageName, map[string]any{
		"description": summary,
		"bin":         map[string]string{"cloud-sandbox": "bin/cloud-sandbox.js"}, "engines": map[string]string{"node": ">=18"},
		"optionalDependencies": optional,
	}, file{"bin/cloud-sandbox.js", launcher, true})
}

func (r release) npmPackage(name string, about map[string]any, f file) error {
	about["name"], about["version"], about["license"] = name, r.npmVersion(), "MIT"
	text, err := json.MarshalIndent(about, "", "  ")
	if err != nil {
		return err
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	t := tar.NewWriter(z)
	for _, f := range []file{{"package.json", append(text, '\n'), false}, {"LICENSE", r.license, false}, f} {
		err := t.WriteHeader(&tar.Header{Name: "package/" + f.name, Mode: f.mode(), Size: int64(len(f.content)), ModTime: r.made})
		if err == nil {
			_, err = io.Copy(t, bytes.NewReader(f.content))
		}
		if err != nil {
			return err
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, name+"-"+r.npmVersion()+".tgz"), out.Bytes(), 0o644)
}
