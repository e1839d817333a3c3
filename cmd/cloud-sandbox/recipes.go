//go:build linux && !client

package main

import (
	_ "embed"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// known is the recipe of a Template that E2B has under the same name. It applies when
// the build names no source.
type known struct {
	suite    string // of Debian; empty: the suite of base
	packages []string
	npm      []string
	files    []template.File
	defaults sandbox.TemplateDefaults
}

// dataSuite is the Debian suite of code-interpreter-v1: the first whose matplotlib, 3.10,
// reports the title of a figure with several charts.
const dataSuite = "trixie"

// agentMemory is the memory of a Sandbox for a coding agent and its child processes, in
// bytes.
const agentMemory = 1 << 30

// recipes by the template names that E2B's clients use.
var recipes = map[string]known{
	"code-interpreter-v1": {
		suite: dataSuite, // its libraries are for its own Python
		packages: []string{
			"fonts-dejavu-core", "python3-matplotlib", "python3-numpy", "python3-pandas", "python3-pil", "python3-requests", "python3-scipy", "python3-sklearn",
		},
	},
	"claude": {npm: []string{"@anthropic-ai/claude-code"}, defaults: sandbox.TemplateDefaults{MemoryBytes: agentMemory}},
	"codex":  {npm: []string{"@openai/codex"}, defaults: sandbox.TemplateDefaults{MemoryBytes: agentMemory}},
	// Programs that the desktop SDK calls by name: Xvfb, xdpyinfo, startxfce4 and its
	// parts, scrot, xdotool, xrandr, gtk-launch, xdg-open, x11vnc, netstat, and noVNC in
	// /opt. The browser is Chromium because Firefox sets the register GS by a call that
	// gVisor lacks.
	"desktop": {
		suite: dataSuite,
		packages: []string{
			"adwaita-icon-theme", "at-spi2-core", "chromium", "dbus-x11", "fonts-dejavu-core", "libgtk-3-bin", "net-tools", "novnc",
			"python3-cffi-backend", // debootstrap does not resolve it: a package depends on its virtual name
			"scrot", "sensible-utils", "thunar", "websockify", "x11-utils", "x11-xserver-utils", "x11vnc", "xauth", "xdg-utils", "xdotool",
			"xfce4-panel", "xfce4-session", "xfce4-settings", "xfce4-terminal", "xfconf", "xfdesktop4", "xfwm4", "xvfb",
		},
		files: []template.File{
			{Path: "/opt/noVNC/utils/novnc_proxy", Mode: 0o755, Content: noVNC},
			{Path: "/etc/chromium.d/cloud-sandbox", Content: []byte(chromiumFlags)},
			{Path: "/usr/share/applications/google-chrome.desktop", Content: []byte(googleChrome)},
		},
		defaults: sandbox.TemplateDefaults{CPUs: 2, MemoryBytes: 2 << 30},
	},
}

// chromiumFlags run Chromium without its own sandbox, warnings and first-run questions.
const chromiumFlags = `export CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-sandbox --test-type --disable-gpu --no-first-run --no-default-browser-check --password-store=basic"
`

// googleChrome makes launch("google-chrome"), which E2B's users call, start Chromium.
const googleChrome = `[Desktop Entry]
Type=Application
Name=Chromium
Exec=/usr/bin/chromium %U
NoDisplay=true
StartupNotify=false
`

//go:embed novnc_proxy.sh
var noVNC []byte

// into adds k to r and keeps the packages and files of r.
func (k known) into(r *template.Recipe) {
	r.Packages = slices.Concat(r.Packages, k.packages)
	r.NPM, r.Defaults = k.npm, k.defaults
	r.Files = slices.Concat(k.files, r.Files)
}
