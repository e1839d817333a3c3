//go:build linux && !client

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	defaultClusterFolder = "/etc/cloud-sandbox/cluster"
	joinPort             = "9094"
	defaultTokenLife     = time.Hour
)

func clusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Give the roles of many machines certificates, by which they know each other",
		Long: `Give the roles of many machines certificates, by which they know each other.

"cluster init" makes a CA on one machine, and "cluster serve" answers there when
others join. "cluster token" prints the command with which one machine joins, once,
as one instance of a role. Nodes start only builds of Cloud Sandbox that "cluster
sign-build" has signed. See docs/cluster.md.`,
	}
	cmd.AddCommand(clusterInitCommand(), clusterServeCommand(), clusterTokenCommand(), clusterJoinCommand(),
		clusterListCommand(), clusterRenewCommand(), clusterRevokeCommand(), clusterSignBuildCommand(), clusterBuildKeyCommand())
	return cmd
}

func nodeCommand() *cobra.Command {
	return cli.NodeCommand(os.Getenv, joinCommand("join", cluster.Node, "Join a cluster as a node, with a token of `cluster token`",
		"  sudo cloud-sandbox node join --token $TOKEN"))
}

// rootOnly is an error unless root runs the command.
func rootOnly() error {
	if os.Geteuid() != 0 {
		return errors.New("only root may use the keys of the cluster: run this as root")
	}
	return nil
}

// authorityFlag adds --dir, the folder of the authority.
func authorityFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("dir", defaultClusterFolder, "folder of the cluster's authority")
}

func openAuthority(dir string) (*cluster.Authority, error) {
	if err := rootOnly(); err != nil {
		return nil, err
	}
	return cluster.OpenAuthority(dir)
}

// commands formats commands for a terminal, one a line.
func commands(all ...string) string { return "  sudo " + strings.Join(all, "\n  sudo ") }

func clusterInitCommand() *cobra.Command {
	var name, join, instance string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the CA of a cluster, and certificates for its first gateway, session-manager and scheduler",
		Long: `Make the CA of a cluster, and certificates for its first gateway, session-manager
and scheduler, each in a folder of its own beside the CA. Run them on this machine,
or copy a folder to its machine.

The CA's key is in FOLDER/ca, readable by root alone. Only "cluster serve" uses it.
Beside it is the key that signs builds, which only "cluster sign-build" uses.`,
		Example: `  sudo cloud-sandbox cluster init --name prod --join control.example:9094`,
		Args:    cobra.NoArgs,
	}
	dir := authorityFlag(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name of the cluster (required)")
	cmd.Flags().StringVar(&join, "join", "", "HOST:PORT where other machines join (default this machine's name, port "+joinPort+")")
	cmd.Flags().StringVar(&instance, "instance", "", "name of the first instances (default this machine's name)")
	_ = cmd.MarkFlagRequired("name")
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := rootOnly(); err != nil {
			return err
		}
		host := hostName()
		if join == "" {
			join = net.JoinHostPort(host, joinPort)
		}
		if instance == "" {
			instance = host
		}
		folder, err := filepath.Abs(*dir)
		if err != nil {
			return err
		}
		_, bundles, err := cluster.Create(folder, name, join, instance, launch.ServerUID)
		if err != nil {
			return err
		}
		_, port, _ := net.SplitHostPort(join) // Create checked it
		next := []string{
			fmt.Sprintf("cloud-sandbox cluster sign-build --dir %s", folder),
			fmt.Sprintf("cloud-sandbox cluster serve --dir %s --addr :%s", folder, port),
			fmt.Sprintf("cloud-sandbox cluster token --dir %s --role node --name NODE", folder),
		}
		made := map[string]string{}
		text := fmt.Sprintf("The cluster %s has a CA, in %s, and the certificates of:\n", name, filepath.Join(folder, "ca"))
		for _, b := range bundles {
			made[b.ID.Short()] = b.Folder
			text += fmt.Sprintf("  %-32s %s\n", b.ID.Short(), b.Folder)
		}
		text += "Set CLOUD_SANDBOX_CLUSTER of each of these roles to its folder. Run the first command for\neach version of the nodes, keep the second one running, and run the third one for each\nnode:\n\n" + commands(next...)
		return cli.Print(cmd, map[string]any{"cluster": name, "folder": folder, "identities": made, "next": next}, text)
	}
	return cmd
}

// hostName is this machine's name, as an instance may be named.
func hostName() string {
	host, err := os.Hostname()
	host = strings.ToLower(host)
	if err != nil || cluster.CheckName(host) != nil {
		return "first"
	}
	return host
}

func clusterServeCommand() *cobra.Command {
	var addr string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer machines that join the cluster, and roles that renew their certificates",
		Long: `Answer machines that join the cluster, and roles that renew their certificates.

It is the only process that uses the CA's key, and parses nothing else. It may be
away for days: certificates are renewed when half of their life of a week is over.`,
		Example: `  sudo cloud-sandbox cluster serve --addr :9094`,
		Args:    cobra.NoArgs,
	}
	dir := authorityFlag(cmd)
	cmd.Flags().StringVar(&addr, "addr", ":"+joinPort, "address to listen on")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		a, err := openAuthority(*dir)
		if err != nil {
			return err
		}
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("listen for machines that join: %w", err)
		}
		log := telemetry.NewLogger(os.Stderr, slog.LevelInfo, telemetry.IsTerminal(os.Stderr))
		log.Info("machines can join the cluster", "cluster", a.Cluster(), "addr", ln.Addr().String(), "fingerprint", a.Fingerprint())
		return cluster.NewJoins(a, 0, log).Run(cmd.Context(), ln)
	}
	return cmd
}

func clusterTokenCommand() *cobra.Command {
	var role, name, join string
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Print the command with which one machine joins the cluster, once",
		Long: `Print the command with which one machine joins the cluster, once, as one instance
of a role. The token in it expires, and names the CA, so that the machine trusts no
other one. "cluster serve" must answer at the address that it names.`,
		Example: `  sudo cloud-sandbox cluster token --role node --name node-1`,
		Args:    cobra.NoArgs,
	}
	dir := authorityFlag(cmd)
	cmd.Flags().StringVar(&role, "role", cluster.Node, "role of the instance: "+strings.Join(cluster.Roles(), ", "))
	cmd.Flags().StringVar(&name, "name", "", "name of the instance (required)")
	cmd.Flags().DurationVar(&life, "ttl", defaultTokenLife, "how long the token can be used, up to 168h")
	cmd.Flags().StringVar(&join, "join", "", "HOST:PORT where the machine joins (default the address of `cluster init`)")
	_ = cmd.MarkFlagRequired("name")
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		a, err := openAuthority(*dir)
		if err != nil {
			return err
		}
		token, err := a.NewToken(role, name, life, join)
		if err != nil {
			return err
		}
		next := "cloud-sandbox cluster join --token " + token.String()
		if role == cluster.Node {
			next = "cloud-sandbox node join --token " + token.String()
		}
		text := fmt.Sprintf("On the machine of %s, within %v:\n\n%s", token.ID().Short(), life, commands(next))
		return cli.Print(cmd, map[string]any{"token": token.String(), "identity": token.ID().Short(), "expires_in": int(life.Seconds()), "next": []string{next}}, text)
	}
	return cmd
}

func clusterJoinCommand() *cobra.Command {
	return joinCommand("join", "", "Join a cluster as the role that a token of `cluster token` names",
		"  sudo cloud-sandbox cluster join --token $TOKEN")
}

// joinCommand joins as a role; empty: any.
func joinCommand(use, role, short, example string) *cobra.Command {
	var text, dir string
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Long: short + `.

The key is made on this machine and does not leave it. The token is sent only to
the CA that it names. The certificate renews itself while the role runs.`,
		Example: example,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&text, "token", "", "token of `cluster token` (required)")
	cmd.Flags().StringVar(&dir, "dir", "", "folder for key and certificate (default cluster/ROLE in the data folder)")
	_ = cmd.MarkFlagRequired("token")
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if os.Geteuid() != 0 {
			return errors.New("the key belongs to the server's user: run this as root")
		}
		token, err := cluster.ParseJoinToken(text)
		if err != nil {
			return cli.FlagError(cmd, fmt.Errorf("--token: %w", err))
		}
		if role != "" && token.Role != role {
			return cli.FlagError(cmd, fmt.Errorf("--token: it is for %s: use `cloud-sandbox cluster join`", token.ID().Short()))
		}
		data, err := onFolder(cmd)
		if err != nil {
			return err
		}
		folder := dir
		if folder == "" {
			folder = launch.Layout{Root: data}.Identity(token.Role)
		}
		if folder, err = filepath.Abs(folder); err != nil {
			return err
		}
		own, err := sentryHostKeys(token.Role, data)
		if err != nil {
			return err
		}
		joined, err := cluster.Join(cmd.Context(), token, folder, launch.ServerUID, own)
		if err != nil {
			return err
		}
		next := startCommand(token, folder, data)
		note := ""
		if own != nil && !joined.Hosts {
			note = "\n\nThe authority is of an earlier version: other nodes do not take the snapshots of this one. Join again when `cluster serve` runs the present version."
		}
		said := fmt.Sprintf("This machine is %s of the cluster %s; its certificate is in %s.\nStart the %s, with the addresses of your machines:\n\n%s%s",
			token.ID().Short(), token.Cluster, folder, token.Role, commands(next), note)
		return cli.Print(cmd, map[string]any{"identity": token.ID().Short(), "cluster": token.Cluster, "folder": folder, "next": []string{next}}, said)
	}
	return cmd
}

// sentryHostKeys returns the keys of the sentry host of a node, whose data folder it makes;
// nil for other roles.
func sentryHostKeys(role, data string) (*installation.Keys, error) {
	if role != cluster.Node {
		return nil, nil
	}
	layout := launch.Layout{Root: data}
	if err := layout.Make(); err != nil {
		return nil, err
	}
	return installation.Open(layout.Saved()), nil
}

// startCommand starts a role that has joined. It supposes that a session-manager and the
// scheduler are on the machine where joins are answered. NODE stands for the node that keeps the templates.
func startCommand(t cluster.JoinToken, folder, data string) string {
	host, _, _ := net.SplitHostPort(t.Address) // ParseJoinToken checked it
	at := func(host, port string) string { return "https://" + net.JoinHostPort(host, port) }
	settings := []string{"CLOUD_SANDBOX_CLUSTER=" + folder}
	addr := ""
	switch t.Role {
	case cluster.Node:
		settings = append(settings, "CLOUD_SANDBOX_NODE_URL="+at(hostName(), "9092"), "CLOUD_SANDBOX_SESSION_MANAGER_URL="+at(host, "9091"))
		addr = "0.0.0.0:9092"
	case cluster.SessionManager:
		settings = append(settings, "CLOUD_SANDBOX_SESSION_MANAGER_URL="+at(hostName(), "9091"), "CLOUD_SANDBOX_SCHEDULER_URL="+at(host, "9090"))
		addr = "0.0.0.0:9091"
	case cluster.Scheduler:
		addr = "0.0.0.0:9090"
	case cluster.Gateway:
		addr = "0.0.0.0:8080"
	}
	if t.Role != cluster.Scheduler {
		settings = append(settings, "CLOUD_SANDBOX_TEMPLATES_URL="+at("NODE", "9092"), "CLOUD_SANDBOX_TEMPLATES_NODE=NODE")
	}
	return strings.Join(settings, " ") + " " + t.Role + " --addr " + addr + " --data " + data
}

func clusterListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the certificates of the cluster that are valid now",
		Example: `  sudo cloud-sandbox cluster list`,
		Args:    cobra.NoArgs,
	}
	dir := authorityFlag(cmd)
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		a, err := openAuthority(*dir)
		if err != nil {
			return err
		}
		all, err := a.Issued()
		if err != nil {
			return err
		}
		var lines []string
		for _, i := range all {
			lines = append(lines, fmt.Sprintf("%-40s until %s", i.ID, i.Expires.Format(time.RFC3339)))
		}
		return cli.Print(cmd, all, strings.Join(lines, "\n"))
	}
	return cmd
}

func clusterRenewCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "renew",
		Short: "Renew the certificate of a role now; a running role does it by itself",
		Long: `Renew the certificate of a role now; a running role does it by itself when half of
the certificate's life is over.`,
		Example: `  sudo cloud-sandbox cluster renew --dir /var/lib/cloud-sandbox/cluster/node`,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&dir, "dir", "", "folder of the certificate (required)")
	_ = cmd.MarkFlagRequired("dir")
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log := telemetry.NewLogger(os.Stderr, slog.LevelInfo, telemetry.IsTerminal(os.Stderr))
		identity, err := cluster.Open(dir, log)
		if err != nil {
			return err
		}
		if err := identity.Renew(cmd.Context()); err != nil {
			return err
		}
		until := identity.Current().NotAfter().UTC().Format(time.RFC3339)
		return cli.Print(cmd, map[string]string{"identity": identity.ID().Short(), "expires": until},
			fmt.Sprintf("%s has a new certificate, until %s", identity.ID().Short(), until))
	}
	return cmd
}

func clusterRevokeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke ROLE/NAME",
		Short: "Refuse the certificates of an instance from now on",
		Long: `Refuse the certificates of an instance from now on, for example of a machine that
was stolen, and its unused join tokens.

Running roles read the list of revoked certificates from "cluster serve" every 30
seconds. To join again, the instance needs a new token. Nodes refuse snapshots that
a revoked node saved; to join again, its machine needs a new data folder.`,
		Example: `  sudo cloud-sandbox cluster revoke node/node-1`,
		Args:    cli.Args(1, 1, "one ROLE/NAME"),
	}
	dir := authorityFlag(cmd)
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a, err := openAuthority(*dir)
		if err != nil {
			return err
		}
		id, err := cluster.ParseShort(a.Cluster(), args[0])
		if err != nil {
			return cli.FlagError(cmd, err)
		}
		n, err := a.Revoke(id)
		if err != nil {
			return err
		}
		return cli.Print(cmd, map[string]any{"identity": id.Short(), "revoked": n}, fmt.Sprintf("%d certificates of %s are revoked", n, id.Short()))
	}
	return cmd
}
