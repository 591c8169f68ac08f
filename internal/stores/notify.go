package stores

import (
	"fmt"
	"maps"
	"slices"

	"github.com/scopefs/scopefs/internal/config"
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
