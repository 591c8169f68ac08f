// Command scopefs-csi is a CSI node plugin: it gives pods the views of agents. It is a client of the daemon's control API, which
// makes and mounts the views, and binds them to where kubelet wants them. scopefs csi starts it, or a container.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/scopefs/scopefs/cmd/scopefs-csi/internal/node"
	"github.com/scopefs/scopefs/cmd/scopefs-csi/internal/rules"
	"github.com/scopefs/scopefs/cmd/scopefs-csi/internal/volumes"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
)

// Bounds of the server.
const (
	maxRequest = 256 << 10        // bytes
	stopTime   = 10 * time.Second // for requests that run, before the process ends
	readyTime  = 2 * time.Second  // for the daemon
)

// version is what the plugin reports; the linker sets it.
var version = "devel"

func main() {
	var o options
	flag.StringVar(&o.socket, "socket", "/csi/csi.sock", "the unix socket that kubelet connects to")
	flag.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "the node's name (NODE_NAME)")
	flag.StringVar(&o.run, "run", "/run/scopefs", "the daemon's run directory")
	flag.StringVar(&o.rules, "rules", "/etc/scopefs/csi.yaml", "the file of rules")
	flag.StringVar(&o.definitions, "definitions", "", "the directory of ConfigMaps with the definitions that pods may name; none without it")
	flag.StringVar(&o.pods, "pods", "/var/lib/kubelet/pods", "kubelet's directory of pods")
	flag.StringVar(&o.registration, "registration", "",
		"kubelet's directory of registrations, which sees the socket at the same path; without it something else registers the plugin")
	flag.StringVar(&o.state, "state", "/var/lib/scopefs-csi", "the plugin's own directory")
	flag.Parse()
	if err := o.serve(); err != nil {
		fmt.Fprintln(os.Stderr, "scopefs-csi: "+err.Error())
		os.Exit(1)
	}
}

type options struct{ socket, node, run, rules, definitions, pods, registration, state string }

// serve answers kubelet until SIGTERM or SIGINT. What is mounted stays.
func (o options) serve() error {
	if o.node == "" {
		return errors.New("--node is missing: give the node's name")
	}
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	daemon := api.NewClient(config.Paths{Run: o.run})
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	all, err := volumes.Open(volumes.Config{Rules: o.rules, Definitions: rules.Definitions(o.definitions), Pods: o.pods,
		State: o.state, Log: log}, daemon)
	if err != nil {
		return err
	}
	l, err := listen(o.socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest))
	services := node.Server{Node: o.node, Version: version, Volumes: all,
		Ready: func(ctx context.Context) error { return daemon.Health(ctx, readyTime) }}
	services.Register(server)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	var watch sync.WaitGroup
	watch.Go(func() { all.Watch(ctx) })
	defer watch.Wait()
	context.AfterFunc(ctx, func() {
		late := time.AfterFunc(stopTime, server.Stop)
		defer late.Stop()
		server.GracefulStop()
	})
	if o.registration != "" { // now that the plugin answers
		found, err := listen(filepath.Join(o.registration, node.RegistrationSocket))
		if err != nil {
			return err
		}
		(&node.Registration{Endpoint: o.socket, Log: log}).Register(server)
		watch.Go(func() { _ = server.Serve(found) })
	}
	log.Info("serving", "socket", o.socket, "node", o.node)
	err = server.Serve(l)
	cancel()
	return err
}

// listen listens on a socket of mode 0600: only root of the node may ask for a pod's volume. It removes the socket of a process
// before.
func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil { // kubelet makes its directories so, and may start later
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return api.Listen(socket)
}
