package stores

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/stores/wire"
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
	one := remoteObjects{s.drivers, cmp.Or(config.Timeout, objectTime) + callTime}
	list, err := objects.New(one, config.Prefix)
	if err != nil {
		return err
	}
	s.add(store{name: "objects", kind: "s3", tools: list, check: one.ping})
	s.tools = append(s.tools, list...)
	return nil
}

// remoteObjects is the object store as its driver serves it.
type remoteObjects struct {
	*drivers
	bound time.Duration // of a call
}

// Get returns an object.
func (r remoteObjects) Get(ctx context.Context, name string) (objects.Content, error) {
	return call(ctx, r.drivers, r.bound, wire.ObjectGet, name)
}

// Put replaces an object and returns its ETag.
func (r remoteObjects) Put(ctx context.Context, p objects.Put) (string, error) {
	return call(ctx, r.drivers, r.bound, wire.ObjectPut, p)
}

// Delete removes an object.
func (r remoteObjects) Delete(ctx context.Context, d objects.Delete) error {
	_, err := call(ctx, r.drivers, r.bound, wire.ObjectDelete, d)
	return err
}

// List returns the next objects.
func (r remoteObjects) List(ctx context.Context, l objects.Listing) (objects.Page, error) {
	return call(ctx, r.drivers, r.bound, wire.ObjectList, l)
}

func (r remoteObjects) ping(ctx context.Context) error { return ping(ctx, r.drivers, wire.ObjectPing) }
