//go:build linux && !client

package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// programsName is the subcommand that unpacks the programs of its build.
const programsName = "unpack-programs"

func clusterSignBuildCommand() *cobra.Command {
	var keyFile string
	var binaries, folders []string
	cmd := &cobra.Command{
		Use:   "sign-build",
		Short: "Allow the nodes of the cluster to start a build of Cloud Sandbox",
		Long: `Allow the nodes of the cluster to start a build of Cloud Sandbox.

A build is the programs that start sandboxes. Nodes start only builds that the
cluster's key has signed, and ask "cluster serve" for the signature. Without a flag
this signs the build of this program: run it before nodes get a new version. In a
cluster without such a key the first call makes one: sign all builds that the nodes
run in that call. From then on nodes refuse all others.

With CLOUD_SANDBOX_BLOBS and the credentials of S3 it uploads the programs too. Then
any node can resume snapshots of this build, also when it runs a newer version.`,
		Example: `  sudo cloud-sandbox cluster sign-build

  # the build of another version, and one from the data folder of a node
  sudo cloud-sandbox cluster sign-build --binary ./cloud-sandbox-next
  sudo cloud-sandbox cluster sign-build --programs /var/lib/cloud-sandbox/lib/BUILD`,
		Args: cobra.NoArgs,
	}
	dir := authorityFlag(cmd)
	cmd.Flags().StringVar(&keyFile, "key", "", "file with the private key (default "+cluster.BuildKeyFile+" beside the CA's key)")
	cmd.Flags().StringArrayVar(&binaries, "binary", nil, "program cloud-sandbox whose build is signed; may be repeated (default this program)")
	cmd.Flags().StringArrayVar(&folders, "programs", nil, "folder with the unpacked programs of a build, lib/BUILD in a data folder; may be repeated")
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		a, err := openAuthority(*dir)
		if err != nil {
			return err
		}
		store, err := buildStore(cmd.Context())
		if err != nil {
			return err
		}
		tmp, err := os.MkdirTemp("", "cloud-sandbox-build-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		all, err := unpackAll(cmd.Context(), tmp, binaries, folders)
		if err != nil {
			return err
		}
		signed, err := a.SignBuilds(manifestsOf(all), keyFile)
		if err != nil {
			return err
		}
		text := ""
		for i, s := range signed {
			text += fmt.Sprintf("The nodes of the cluster %s may start build %s, for %s.\n", a.Cluster(), s.Build, s.Arch)
			if store == nil {
				continue
			}
			if err := store.Put(cmd.Context(), s, all[i].folder); err != nil {
				return err
			}
		}
		if store == nil {
			text += "The programs were not uploaded, because CLOUD_SANDBOX_BLOBS is not set: nodes of other versions cannot resume snapshots of it."
		} else {
			text += "The programs are in the blob store: nodes of other versions can resume snapshots of it."
		}
		return cli.Print(cmd, map[string]any{"cluster": a.Cluster(), "builds": signed, "uploaded": store != nil}, text)
	}
	return cmd
}

// buildStore is where CLOUD_SANDBOX_BLOBS keeps builds; nil: it is not set.
func buildStore(ctx context.Context) (*builds.Store, error) {
	c, err := config.BlobsOf(os.Getenv)
	if err != nil || !c.Wanted() {
		return nil, err
	}
	log := telemetry.NewLogger(os.Stderr, slog.LevelError, telemetry.IsTerminal(os.Stderr))
	blobs, err := serve.OpenBlobs(ctx, &c, log)
	if err != nil {
		return nil, err
	}
	return &builds.Store{Blobs: blobs}, nil
}

// unpackedBuild is a build whose programs are in a folder.
type unpackedBuild struct {
	folder   string
	manifest builds.Manifest
}

func manifestsOf(all []unpackedBuild) (out []builds.Manifest) {
	for _, u := range all {
		out = append(out, u.manifest)
	}
	return out
}

// unpackAll returns the builds of programs, or of this program if no build is named, which
// it unpacks below tmp, and those in folders.
func unpackAll(ctx context.Context, tmp string, binaries, folders []string) (all []unpackedBuild, err error) {
	if len(binaries)+len(folders) == 0 {
		own, err := payload.Unpack(tmp)
		if err != nil {
			return nil, err
		}
		folders = []string{own.Dir}
	}
	for _, binary := range binaries {
		folder, err := unpackOther(ctx, binary, tmp)
		if err != nil {
			return nil, err
		}
		folders = append(folders, folder)
	}
	for _, folder := range folders {
		m, err := builds.Read(folder)
		if err != nil {
			return nil, err
		}
		all = append(all, unpackedBuild{folder, m})
	}
	return all, nil
}

// unpackOther has another program unpack its build below tmp, and returns the folder.
func unpackOther(ctx context.Context, binary, tmp string) (string, error) {
	path, err := filepath.Abs(binary)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, programsName, tmp)
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s is not a program cloud-sandbox of this version or a later one, for this kind of machine: %w: %.200s; name the folder of its unpacked programs with --programs, lib/BUILD in the data folder of a node that runs it",
			binary, err, bytes.TrimSpace(problem.Bytes()))
	}
	folder := strings.TrimSpace(out.String())
	if filepath.Dir(folder) != tmp {
		return "", fmt.Errorf("%s is not a program cloud-sandbox: it prints %.80q", binary, folder)
	}
	return folder, nil
}

func clusterBuildKeyCommand() *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use:   "build-key",
		Short: "Print the key that signs the builds of the cluster, or replace it",
		Long: `Print the public key that signs the builds of the cluster, or replace it.

Replace a key that was lost or stolen. All builds that were signed with "cluster
sign-build" are signed again with the new key, and their signatures in S3 replaced if
CLOUD_SANDBOX_BLOBS is set. Running nodes have the new key within a minute. They then
refuse the signatures of the old key. Remove copies of the old key that you keep
elsewhere.`,
		Example: `  sudo cloud-sandbox cluster build-key
  sudo cloud-sandbox cluster build-key --replace`,
		Args: cobra.NoArgs,
	}
	dir := authorityFlag(cmd)
	cmd.Flags().BoolVar(&replace, "replace", false, "make a new key, which replaces the present one")
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		a, err := openAuthority(*dir)
		if err != nil {
			return err
		}
		again := 0
		if replace {
			if again, err = replaceBuildKey(cmd.Context(), a); err != nil {
				return err
			}
		}
		key, err := a.BuildKey()
		if err != nil {
			return err
		}
		if key == nil {
			return fmt.Errorf("the cluster %s has no key that signs builds: `cloud-sandbox cluster sign-build` makes one", a.Cluster())
		}
		text := key.Key.String()
		if replace {
			text = fmt.Sprintf("%s signs the builds of the cluster %s now; %d were signed again.", key.Key, a.Cluster(), again)
		}
		return cli.Print(cmd, map[string]any{"cluster": a.Cluster(), "key": key.Key, "number": key.Number, "signed_again": again}, text)
	}
	return cmd
}

// replaceBuildKey replaces the key of builds, and the signatures in the blob store. It
// returns the number of builds that were signed again.
func replaceBuildKey(ctx context.Context, a *cluster.Authority) (int, error) {
	store, err := buildStore(ctx)
	if err != nil {
		return 0, err
	}
	all, err := a.ReplaceBuildKey()
	if err != nil || store == nil {
		return len(all), err
	}
	for _, s := range all {
		if err := store.PutSignature(ctx, s); err != nil {
			return 0, fmt.Errorf("the key was replaced, and not all signatures in the blob store: run this again: %w", err)
		}
	}
	return len(all), nil
}
