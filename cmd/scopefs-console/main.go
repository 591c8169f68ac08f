// Command scopefs-console serves the web page of a daemon. It is a client of the daemon's control API, and has nothing
// else: no file but the list of paired devices, no program, no network but the listening socket that scopefs
// console or scopefs daemon --console starts it with.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/entry"
	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/pages"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/confine"
	"github.com/scopefs/scopefs/internal/console"
	"github.com/scopefs/scopefs/internal/devices"
	"github.com/scopefs/scopefs/internal/thread"
)

// memory limits the bytes of data of the process.
const memory = 512 << 20

func main() {
	thread.NameProcess("scopefs-console")
	run := flag.String("run", "", "the daemon's run directory")
	state := flag.String("state", "", "the daemon's state directory")
	address := flag.String("listen", "", "the ADDRESS:PORT, or "+console.UnixPrefix+"PATH, of the listening socket")
	secure := flag.Bool("tls", false, "the first request has a certificate")
	flag.Parse()
	if err := serve(*run, *state, *address, *secure); err != nil {
		fmt.Fprintln(os.Stderr, "scopefs-console: "+err.Error())
		os.Exit(1)
	}
}

// serve answers browsers, and the parent's requests until their end.
func serve(run, state, address string, secure bool) error {
	if run == "" || state == "" {
		return errors.New("--run or --state is missing: start it with scopefs console")
	}
	store, err := devices.Open(state)
	if err != nil {
		return err
	}
	defer store.Close()
	l, err := entry.Inherited(console.SocketFD, address)
	if err != nil {
		return err
	}
	defer l.Close()
	client := api.NewClient(config.Paths{Run: run})
	door, err := entry.New(store, func(ctx context.Context, d devices.Device) error {
		return client.RecordDevice(ctx, api.DeviceRequest{Name: d.Name, Role: string(d.Role)})
	}, l.Local)
	if err != nil {
		return err
	}
	site, err := pages.New(client, store, door.Root)
	if err != nil {
		return err
	}
	_, _ = time.Now().Zone() // reads the file of the time zone, once
	if err := confine.InPlace(run, devices.Dir(state), memory); err != nil {
		return err
	}
	p := parent{in: bufio.NewScanner(os.Stdin), out: json.NewEncoder(os.Stdout), l: l, door: door}
	p.in.Buffer(nil, console.MaxLine)
	if secure {
		if r, ok := p.next(); !ok || r.Ask != console.AskTLS {
			return errors.New("there is no certificate on the standard input")
		} else if err := l.Certify([]byte(r.Cert), []byte(r.Key)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer site.Start()()
	go door.Watch(ctx)
	served := make(chan error, 1)
	go func() { served <- l.Serve(door.Handler(site.Routes(), site.Assets(), site.Own)) }()
	p.reply(console.Reply{}, nil) // it listens
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for r, ok := p.next(); ok; r, ok = p.next() {
			p.reply(p.do(r))
		}
	}()
	select {
	case <-asked:
		return nil
	case err := <-served:
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		return err
	}
}

// parent is the process that has started this one, which asks for links.
type parent struct {
	in   *bufio.Scanner
	out  *json.Encoder
	l    *entry.Listener
	door *entry.Door
	n    uint64 // of the last request
}

// next returns the next request. A line that is none is one that asks for nothing.
func (p *parent) next() (r console.Request, ok bool) {
	if !p.in.Scan() {
		return r, false
	}
	_ = json.Unmarshal(p.in.Bytes(), &r)
	p.n = r.N
	return r, true
}

func (p *parent) reply(r console.Reply, err error) {
	if err != nil {
		r = console.Reply{Error: err.Error()}
	}
	r.N = p.n
	_ = p.out.Encode(r) // a parent that is gone ends the requests
}

// do does what a request asks for.
func (p *parent) do(r console.Request) (reply console.Reply, err error) {
	switch r.Ask {
	case console.AskLink:
		path, err := p.door.Link()
		return console.Reply{Link: p.l.URL(path, false)}, err
	case console.AskPair:
		path, err := p.door.PairLink(r.Name, r.Role)
		if err != nil {
			return reply, err
		}
		reply.Link = p.l.URL(path, true)
		reply.QR, err = lines(reply.Link)
		return reply, err
	case console.AskInbox:
		if p.l.Secure() && p.door.Kept() {
			reply.Link = p.l.URL(p.door.Root+"/inbox", true)
		}
		return reply, nil
	case console.AskTLS:
		return reply, p.l.Certify([]byte(r.Cert), []byte(r.Key))
	}
	return reply, fmt.Errorf("%.20q is no request", r.Ask)
}
