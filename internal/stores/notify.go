package stores

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/stores/wire"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/notify"
)

// notify adds the channels of notify: a store for each.
func (s *Stores) notify(config map[string]config.Channel) error {
	if len(config) == 0 {
		return nil
	}
	all := map[string]notify.Channel{}
	for name, c := range config {
		all[name] = notify.Channel{
			Kind: notify.Kind(c.Kind), URL: c.URL, Agents: c.Allows, Room: c.Room, From: c.From, To: c.To, User: c.User,
			Credential: c.Credential, Header: c.Header, Prefix: c.Prefix, Addresses: c.Addresses, Rate: c.Rate, Timeout: c.Timeout,
		}
		if notify.Kind(c.Kind) == notify.Email {
			s.mail(name, all)
		}
	}
	list, err := notify.New(all)
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(config)) {
		s.add(store{name: "notify." + name, kind: config[name].Kind, tools: list, check: all[name].Dial, allows: config[name].Allows})
	}
	s.tools = append(s.tools, list...) // one tool for all of them
	return nil
}

// mail lets a driver send the e-mails of a channel.
func (s *Stores) mail(name string, all map[string]notify.Channel) {
	c := all[name]
	s.drivers.serve(wire.Mail+name, nil, func(ctx context.Context, _, _ string) (net.Conn, error) {
		return c.Dialer().DialContext(ctx, "tcp", notify.Address(c.URL))
	})
	c.Mailer = func(ctx context.Context, l notify.Letter) (*notify.Failure, error) {
		f, err := call(ctx, s.drivers, l.Timeout+callTime, wire.SendMail, l)
		return f, tools.Cause(err)
	}
	all[name] = c
}
