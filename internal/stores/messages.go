package stores

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"

	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/stores/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/messages"
)

// messages adds the message store.
func (s *Stores) messages(config *config.MessagesStore) error {
	if config == nil {
		return nil
	}
	kind := "nats embedded"
	if config.URL != "" || config.User != "" || config.Password != nil {
		kind = "nats"
		u, err := url.Parse(config.URL)
		if err != nil {
			return errors.New("messages: url: is no address: write tls://HOST:PORT or nats://HOST:PORT")
		}
		if err := (messages.Server{URL: u, User: config.User, Password: config.Password}).Check(); err != nil {
			return fmt.Errorf("messages: %w", err)
		}
		s.drivers.serve(wire.Messages, config.Password, only("tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222"))))
	}
	s.drivers.settings.Messages = config
	one := remoteMessages{drivers: s.drivers, grants: messages.Grants{Channels: granted(config.Channels), Inboxes: granted(config.Inboxes)}}
	one.disk = s.bound(&disk{store: "messages", measure: one.size})
	list, err := messages.New(one, one.grants)
	if err != nil {
		return err
	}
	s.add(store{name: "messages", kind: kind, tools: list, check: one.ping, held: one.held, forget: one.forget})
	s.tools = append(s.tools, list...)
	return nil
}

func granted(lists map[string]agents.IDs) map[string]func(scope.Principal) bool {
	all := map[string]func(scope.Principal) bool{}
	for name, who := range lists {
		all[name] = who.Holds
	}
	return all
}

// remoteMessages is the message store as its driver serves it.
type remoteMessages struct {
	*drivers
	disk   *disk
	grants messages.Grants
}

// size returns what the store holds on an agent's own subjects.
func (r remoteMessages) size(ctx context.Context, agent scope.ID) (use quota.Use, err error) {
	return r.sizes(ctx, messages.StreamOf(agent))
}

// held returns what the store has of an agent, with its inbox.
func (r remoteMessages) held(ctx context.Context, agent scope.ID) (use quota.Use, err error) {
	return r.sizes(ctx, r.grants.Of(agent).Streams...)
}

func (r remoteMessages) sizes(ctx context.Context, streams ...string) (use quota.Use, err error) {
	if r.settings.Messages.URL == "" && !r.exists(wire.MessagesDir) {
		return use, nil
	}
	for _, stream := range streams {
		bytes, err := call(ctx, r.drivers, messages.Patience+callTime, wire.MessagesSize, stream)
		if err != nil {
			return use, err
		}
		use.Bytes += bytes
	}
	return use, nil
}

// forget removes what the store has of an agent, and its positions in channels.
func (r remoteMessages) forget(ctx context.Context, agent scope.ID) error {
	if r.settings.Messages.URL == "" && !r.exists(wire.MessagesDir) {
		return nil
	}
	_, err := call(ctx, r.drivers, messages.Patience+callTime, wire.Forget, r.grants.Of(agent))
	return err
}

// Publish adds a message to a place.
func (r remoteMessages) Publish(ctx context.Context, m messages.Message) (sequence uint64, err error) {
	publish := func() (err error) {
		sequence, err = call(ctx, r.drivers, messages.Patience+callTime, wire.Publish, m)
		return err
	}
	if !m.Own { // channels and inboxes have their own limits
		err = publish()
		return sequence, err
	}
	grows := quota.Use{Bytes: int64(len(m.Text) + len(m.Filter) + len(m.From) + messages.Overhead)}
	err = r.disk.change(ctx, m.From, grows, publish)
	return sequence, err
}

// Read returns the messages of a place after a position.
func (r remoteMessages) Read(ctx context.Context, in messages.Reading) (messages.Found, error) {
	return call(ctx, r.drivers, messages.Patience+in.Wait+callTime, wire.Read, in)
}

// ping checks that the store works. A server that no call has needed yet is not started.
func (r remoteMessages) ping(ctx context.Context) error {
	if r.settings.Messages.URL == "" && !r.exists(wire.MessagesDir) {
		return nil
	}
	return ping(ctx, r.drivers, wire.MessagesPing)
}
