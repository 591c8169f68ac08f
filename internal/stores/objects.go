package stores

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/stores/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/objects"
)

// objectTime is how long a call of the object store may take by default.
const objectTime = 30 * time.Second

// objects adds the object store.
func (s *Stores) objects(config *config.ObjectStore) error {
	if config == nil {
		return nil
	}
	if err := objects.Options(*config).Check(); err != nil {
		return fmt.Errorf("objects: %w", err)
	}
	dialer := &egress.Dialer{Pinned: config.Addresses}
	s.drivers.serve(wire.Objects, config.SecretKey, func(ctx context.Context, _, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		own, wanted := config.URL.Hostname(), cmp.Or(config.URL.Port(), map[string]string{"http": "80", "https": "443"}[config.URL.Scheme])
		if err != nil || port != wanted || host != own && host != config.Bucket+"."+own {
			return nil, fmt.Errorf("%w: %.200q is not the server of the bucket", egress.ErrAddress, address)
		}
		return dialer.DialContext(ctx, "tcp", address)
	})
	s.drivers.settings.Objects = config
	one := remoteObjects{drivers: s.drivers, bound: cmp.Or(config.Timeout, objectTime) + callTime, parts: share.Prefix{Base: config.Prefix}}
	one.disk = s.bound(&disk{store: "objects", measure: one.size, slow: true})
	list, err := objects.New(one, config.Prefix)
	if err != nil {
		return err
	}
	s.add(store{name: "objects", kind: "s3", tools: list, check: one.ping, held: one.size, forget: one.forget})
	s.tools = append(s.tools, list...)
	return nil
}

// remoteObjects is the object store as its driver serves it.
type remoteObjects struct {
	*drivers
	bound time.Duration // of a call
	parts share.Prefix
	disk  *disk
}

// size lists what the store holds for an agent.
func (r remoteObjects) size(ctx context.Context, agent scope.ID) (use quota.Use, err error) {
	err = r.each(ctx, agent, func(o objects.Object) error {
		use = use.Plus(sizeOf(o.Name, max(o.Bytes, 0)))
		return nil
	})
	return use, err
}

// forget removes what the store holds for an agent.
func (r remoteObjects) forget(ctx context.Context, agent scope.ID) error {
	return r.each(ctx, agent, func(o objects.Object) error {
		_, err := call(ctx, r.drivers, r.bound, wire.ObjectDelete, objects.Delete{Name: o.Name})
		return err
	})
}

// each calls f for the objects of an agent.
func (r remoteObjects) each(ctx context.Context, agent scope.ID, f func(objects.Object) error) error {
	part, err := r.parts.Apply(agent, "")
	for l := (objects.Listing{Prefix: part, Limit: objects.MaxPage}); err == nil; {
		var page objects.Page
		if page, err = r.List(ctx, l); err != nil {
			break
		}
		for _, o := range page.Objects {
			if l.After = o.Name; err == nil {
				err = f(o)
			}
		}
		if !page.More || len(page.Objects) == 0 {
			break
		}
	}
	return err
}

// sizeOf returns what an object takes.
func sizeOf(name string, bytes int64) quota.Use {
	return quota.Use{Bytes: int64(len(name)) + bytes, Files: 1}
}

// change makes a change by which the part of a name's agent grows by so much at most.
func (r remoteObjects) change(ctx context.Context, name string, grows quota.Use, do func() error) error {
	_, rest, _ := strings.Cut(strings.TrimPrefix(name, r.parts.Base), "agents/")
	agent, _, _ := strings.Cut(rest, "/")
	return r.disk.change(ctx, scope.ID(agent), grows, do)
}

// Get returns an object.
func (r remoteObjects) Get(ctx context.Context, name string) (objects.Content, error) {
	return call(ctx, r.drivers, r.bound, wire.ObjectGet, name)
}

// Put replaces an object and returns its ETag.
func (r remoteObjects) Put(ctx context.Context, p objects.Put) (etag string, err error) {
	err = r.change(ctx, p.Name, sizeOf(p.Name, int64(len(p.Content))), func() (err error) {
		etag, err = call(ctx, r.drivers, r.bound, wire.ObjectPut, p)
		return err
	})
	return etag, err
}

// Delete removes an object.
func (r remoteObjects) Delete(ctx context.Context, d objects.Delete) error {
	return r.change(ctx, d.Name, quota.Use{}, func() error {
		_, err := call(ctx, r.drivers, r.bound, wire.ObjectDelete, d)
		return err
	})
}

// List returns the next objects.
func (r remoteObjects) List(ctx context.Context, l objects.Listing) (objects.Page, error) {
	return call(ctx, r.drivers, r.bound, wire.ObjectList, l)
}

func (r remoteObjects) ping(ctx context.Context) error { return ping(ctx, r.drivers, wire.ObjectPing) }
