package template

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
)

// imageUUID is constant, so that equal trees give equal files.
const imageUUID = "c10d5a2d-b0c5-4000-8000-000000000001"

// makeErofs writes the tree at root to file, which must not exist. Times after newest are
// set to newest. Older times are kept, because Python compares them with its compiled
// files.
//
// gVisor maps whole blocks, so tails are not inlined. It cannot copy up extended
// attributes, so they are dropped.
func makeErofs(ctx context.Context, root, file string, newest time.Time) error {
	cmd := exec.CommandContext(ctx, "mkfs.erofs", "-x-1", "-Enoinline_data", "--quiet", "-U", imageUUID, file, root)
	// With this variable mkfs.erofs clamps times; its -T would overwrite all.
	cmd.Env = append(childEnv(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(newest.Unix(), 10))
	cmd.SysProcAttr = dieWithParent()
	if out, err := runLocked(cmd); err != nil {
		return fmt.Errorf("make EROFS image: %w: %s", err, lastLines(out, 5))
	}
	return nil
}

// BuildGuestImage writes to file an EROFS image that holds the Guest binary as
// /guest, executable and owned by root. An existing file is replaced.
func BuildGuestImage(ctx context.Context, guestBinary, file string) error {
	if err := needTools("mkfs.erofs"); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(file), ".guest-image-*")
	if err != nil {
		return fmt.Errorf("build guest image: %w", err)
	}
	defer os.RemoveAll(tmp)
	body, err := os.ReadFile(guestBinary)
	if err != nil {
		return fmt.Errorf("build guest image: %w", err)
	}
	root, image := filepath.Join(tmp, "root"), filepath.Join(tmp, "image")
	if err := os.Mkdir(root, 0o755); err != nil {
		return fmt.Errorf("build guest image: %w", err)
	}
	if err := os.WriteFile(filepath.Join(root, "guest"), body, 0o755); err != nil {
		return fmt.Errorf("build guest image: %w", err)
	}
	for _, path := range []string{root, filepath.Join(root, "guest")} { // despite the umask
		if err := os.Chmod(path, 0o755); err != nil {
			return fmt.Errorf("build guest image: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, "mkfs.erofs", "-x-1", "-Enoinline_data", "--quiet", "--all-root", "-T", "0", "-U", imageUUID, image, root)
	cmd.Env = childEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build guest image: %w: %s", err, lastLines(string(out), 5))
	}
	if err := os.Chmod(image, 0o644); err != nil {
		return fmt.Errorf("build guest image: %w", err)
	}
	return durable.Rename(image, file)
}

// lastLines returns the last n lines of text, for an error.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
