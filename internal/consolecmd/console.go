// Package consolecmd is scopefs console, which opens the daemon's web page.
package consolecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/console"
	"github.com/scopefs/scopefs/internal/devices"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal"
)

// Env is what the command has of the command line.
type Env struct {
	Out, Err io.Writer
	Client   func() (*api.Client, config.Paths, error)
	// Start starts a daemon for this command, which end stops. It fails with no where one has to run already.
	Start func(ctx context.Context, no error) (p config.Paths, end func(), err error)
}

// options are where the page is served, and how its link is shown.
type options struct {
	console.Options
	own  bool // where: the operator says so
	open bool
	json bool
}

func (o *options) flags(c *cobra.Command) {
	c.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:0", "ADDRESS:PORT, or unix:PATH")
	c.Flags().StringVar(&o.Cert, "tls-cert", "",
		"`FILE` with the certificate and its chain, PEM: an address off the loopback interface needs one")
	c.Flags().StringVar(&o.Key, "tls-key", "", "`FILE` with the certificate's key, PEM")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
}

func (o *options) check(c *cobra.Command) error {
	o.own = c.Flags().Changed("listen")
	if err := o.Check("listen", "tls-cert", "tls-key"); err != nil {
		return exit.With(exit.Usage, err)
	}
	return nil
}

// New returns scopefs console.
func New(v Env) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "console",
		Short: "show what agents do in a browser",
		Long: `Serves a web page of the daemon on the loopback interface, and prints a link that opens it once,
within five minutes. It serves until it is interrupted, also without a daemon; outside of a project it is about the one
whose agent has changed something last. If the daemon serves the page already (scopefs daemon --console), the command
prints a link to that and ends.

--listen unix:/PATH listens on a unix socket of this user alone, to which ssh -L PORT:/PATH HOST forwards a port. Another
address needs --tls-cert and --tls-key, and lets paired devices in alone: see scopefs console pair.

A browser that has used a link stays logged in for twelve hours, or half an hour without use.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(c); err != nil {
				return err
			}
			if !o.Local() {
				return exit.Usagef("--listen %q: links work on the loopback interface: let a device in with scopefs console pair, or serve devices with scopefs daemon --console", o.Listen)
			}
			return v.serve(c.Context(), o, api.LinkRequest{})
		},
	}
	o.flags(c)
	c.Flags().BoolVar(&o.open, "open", false, "open the link in the user's browser")
	c.AddCommand(v.pair(), v.devices())
	return c
}

func (v Env) serve(ctx context.Context, o options, req api.LinkRequest) error {
	client, p, err := v.Client()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	if !o.own {
		if reply, err := client.ConsoleLink(ctx, req); err == nil {
			return v.showLink(reply, req, o)
		}
	}
	if _, err := client.Agents(ctx); errors.Is(err, api.ErrNoDaemon) {
		var end func()
		if p, end, err = v.Start(ctx, err); err != nil {
			return err
		}
		defer end()
	}
	socket, err := console.Listen(o.Options)
	if err != nil {
		return err
	}
	defer socket.Close()
	process, err := socket.Start(p, v.Err)
	if err != nil {
		return err
	}
	defer process.Close()
	ask := console.Request{Ask: console.AskLink}
	if req.Pair != "" {
		ask = console.Request{Ask: console.AskPair, Name: req.Pair, Role: devices.Role(req.Role)}
	}
	reply, err := process.Do(ask)
	if err == nil {
		err = v.showLink(api.LinkReply{Link: reply.Link, QR: reply.QR}, req, o)
	}
	if err != nil {
		return err
	}
	if terminal.Is(v.Err) {
		fmt.Fprintln(v.Err, "scopefs: serves this until Ctrl-C")
	}
	select {
	case <-ctx.Done():
		return nil
	case <-process.Ended():
		return errors.New("console: " + console.Name + " has ended: start it again")
	}
}

// showLink prints a link, and opens it. A terminal shows its QR code, too.
func (v Env) showLink(reply api.LinkReply, req api.LinkRequest, o options) error {
	if link, err := url.Parse(reply.Link); req.Pair != "" && err == nil && link.Hostname() == "localhost" {
		fmt.Fprintln(v.Err, "scopefs: only a browser of this host can open this link: for a phone scopefs console pair --listen ADDRESS:PORT "+
			"--tls-cert FILE --tls-key FILE, with an address of this host and a certificate for its name")
	}
	show := func() error {
		if terminal.Is(v.Out) {
			fmt.Fprint(v.Out, reply.QR)
		}
		_, err := fmt.Fprintln(v.Out, reply.Link)
		return err
	}
	if o.json {
		show = func() error { return report.Line(v.Out, map[string]string{"link": reply.Link}) }
	}
	if err := show(); err != nil || !o.open {
		return err
	}
	return openLink(reply.Link)
}

// openLink opens a link in the user's browser. The link is in a file of this user alone: every user of the host can read
// the arguments of a process.
func openLink(link string) error {
	f, err := os.CreateTemp(os.Getenv("XDG_RUNTIME_DIR"), "scopefs-console-*.html") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		time.Sleep(3 * time.Second) // xdg-open returns before the browser has read the file
		os.Remove(f.Name())
	}()
	_, err = fmt.Fprintf(f, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url=%s\">\n", link)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := exec.Command("xdg-open", f.Name()).Run(); err != nil {
		return fmt.Errorf("--open: xdg-open: %w: open the link in a browser yourself", err)
	}
	return nil
}
